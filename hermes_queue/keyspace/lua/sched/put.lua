-- @lazy open_way, put_in
-- Have jobs wait in the tree.
local HEAD_START_S = 600  -- a child that returns is at most this far ahead of the one that is next

local function open_child(node, child)
  local open, shut = open_set(node), shut_set(node)
  if healing('ZSCORE', open, child) then return end
  local own = healing('ZSCORE', shut, child)
  local first = redis.call('ZRANGE', open, 0, 0, 'WITHSCORES')[2]
  local score = math.max(tonumber(own or '0'), first and tonumber(first) - HEAD_START_S or 0)
  redis.call('ZADD', open, stamp(score), child)
  redis.call('EXPIRE', open, KEPT_S)
  if own then redis.call('ZREM', shut, child) end
end

local function open_way(leaf)
  local lane, team, run_id, env = parts_of_leaf(leaf)
  if not lane then return end
  open_child(lane .. '|' .. team .. '|' .. run_id, env)
  open_child(lane .. '|' .. team, run_id)
  open_child(lane, team)
end

-- Have jobs wait in a leaf: `flat` is a list of their places and ids, in turn.
local function put_in(leaf, flat)
  local lane = parts_of_leaf(leaf)
  if not lane or #flat == 0 then return end
  for first = 1, #flat, 1000 do
    healing('ZADD', jobs_of(leaf), unpack(flat, first, math.min(first + 999, #flat)))
  end
  healing('ZADD', prefix .. 'sched:leaves', stamp(now), leaf)
  for _, key in ipairs({jobs_of(leaf), prefix .. 'sched:leaves'}) do redis.call('EXPIRE', key, KEPT_S) end
  open_way(leaf)
end
