-- Ids nest: <run>.<digest>.<sample>. Only the run id may contain dots.
local function run_of(id) return string.match(id, '^(.*)%.[^.]*%.[^.]*$') end
local function group_of(id) return string.match(id, '^(.*)%.') end
