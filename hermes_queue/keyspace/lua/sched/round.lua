-- A round of `sched_tick` over all leaves: what it counts and what it clears.

local waits_in = {}  -- jobs by lane, in the leaves of this call

-- Keep what was counted until all leaves have been visited; then `n|{lane}` has the numbers of the whole fleet.
local function note_waiting(is_last)
  for lane, count in pairs(waits_in) do redis.call('HINCRBY', sched, 'a|' .. lane, count) end
  if not is_last then return end
  local flat = redis.call('HGETALL', sched)
  for i = 1, #flat, 2 do
    local letter, lane = string.match(flat[i], '^([an])|(.*)$')
    if letter == 'n' then redis.call('HDEL', sched, flat[i]) end
  end
  for i = 1, #flat, 2 do
    local lane = string.match(flat[i], '^a|(.*)$')
    if lane then
      redis.call('HSET', sched, 'n|' .. lane, flat[i + 1])
      redis.call('HDEL', sched, flat[i])
    end
  end
end

-- A key of the leaf is of another type, which a producer could write: delete what can be made again.
local function clear(leaf)
  local lane, team, run_id = parts_of_leaf(leaf)
  for _, node in ipairs(lane and {lane, lane .. '|' .. team, lane .. '|' .. team .. '|' .. run_id} or {}) do
    for _, key in ipairs({open_set(node), shut_set(node)}) do
      if redis.call('TYPE', key)['ok'] ~= 'zset' then redis.call('DEL', key) end
    end
  end
  local kind = redis.call('TYPE', jobs_of(leaf))['ok']
  if not lane or kind ~= 'zset' and kind ~= 'none' then redis.call('DEL', jobs_of(leaf)) end
  if not lane then redis.call('ZREM', leaves, leaf) end
end
