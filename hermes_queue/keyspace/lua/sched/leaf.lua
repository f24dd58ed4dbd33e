-- A leaf of the tree of waiting jobs, see sched/tree.lua: `lane|team|run|env`. Its jobs wait in the sorted set
-- sched:jobs:{leaf}; its field in sched:running has the number of its running jobs and a sum, see begin/charge.lua.

local function name_of_leaf(lane, team, run_id, env)
  local function plain(text, most) return (string.gsub(string.sub(text or '', 1, most or 200), '[|%s]', '/')) end
  return plain(lane, 300) .. '|' .. plain(team) .. '|' .. run_id .. '|' .. plain(env)
end

-- Lane, team, run and env; nil if it is not the name of a leaf.
local function parts_of_leaf(leaf) return string.match(leaf, '^([^|]+)|([^|]*)|([^|]+)|([^|]*)$') end

local function counts_in(text)
  local r, c = string.match(text or '', '^(%d+) (%S+)$')
  return tonumber(r or '') or 0, tonumber(c or '') or 0
end

local function jobs_of(leaf) return prefix .. 'sched:jobs:' .. leaf end

-- A key of another type changes nothing.
local function take_out(leaf, id)
  if leaf then redis.pcall('ZREM', jobs_of(leaf), id) end
end
