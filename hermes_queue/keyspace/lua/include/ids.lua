-- Ids nest: <run>.<digest>.<sample>. The id of a run may have dots in it, the rest has none.
local function run_of(id) return string.match(id, '^(.*)%.[^.]*%.[^.]*$') end
local function group_of(id) return string.match(id, '^(.*)%.') end
