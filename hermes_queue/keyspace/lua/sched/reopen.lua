-- @lazy reopen, spend
-- @include sched/tree, sched/put, sched/rows, sched/ticket
-- What was shut at a limit, and what counts towards quotas.

local COMPARED = 64  -- shut ways of a limit, of which the next ones are opened

-- How far a child of a node is from being next.
local function point_of(points, node, child)
  local name = node .. '|' .. child
  if not points[name] then
    local score = redis.call('ZSCORE', open_set(node), child) or redis.call('ZSCORE', shut_set(node), child)
    points[name] = tonumber(score or '0')
  end
  return points[name]
end

-- Sort leaves by the usage of their teams and then of their runs, the first of each lane before all others.
local function sort_by_usage(leaves)
  local points, facts, seen = {}, {}, {}
  for _, leaf in ipairs(leaves) do
    local lane, team, run_id = parts_of_leaf(leaf)
    facts[leaf] = {lane = lane or '', later = 0, team = lane and point_of(points, lane, team) or 0,
      run = lane and point_of(points, lane .. '|' .. team, run_id) or 0}
  end
  local function is_before(a, b)
    local one, two = facts[a], facts[b]
    for _, by in ipairs({'later', 'team', 'run'}) do
      if one[by] ~= two[by] then return one[by] < two[by] end
    end
    return a < b
  end
  table.sort(leaves, is_before)
  for _, leaf in ipairs(leaves) do
    local fact = facts[leaf]
    fact.later, seen[fact.lane] = seen[fact.lane] and 1 or 0, true
  end
  table.sort(leaves, is_before)
end

-- Let ways that were shut at a limit be looked at again: those that are next, if there are many.
local function reopen(name, most)
  local key = prefix .. 'sched:blocked:' .. name
  local leaves = redis.call('SRANDMEMBER', key, math.max(most, COMPARED))
  if #leaves > most then sort_by_usage(leaves) end
  for place = 1, math.min(#leaves, most) do
    local leaf = leaves[place]
    local lane = parts_of_leaf(leaf)
    redis.call('SREM', key, leaf)
    local first = lane and redis.call('ZRANGE', jobs_of(leaf), 0, 0)[1]
    if first then
      open_way(leaf)
      if not has_messages(lane) then send_tickets(lane, 1, first) end
    end
  end
end

-- Count slot-time in the quotas of these names.
local function spend(names, seconds)
  for _, name in ipairs(names) do
    local row = redis.call('HGET', prefix .. 'sched', name) or nil
    if setting(row, 'quota_h') and setting(row, 'window_s') then
      -- Not by INCRBYFLOAT: in a script it corrupts the memory of Redis 6.2.
      local key = spent_key(name, row)
      local spent = (tonumber(redis.call('GET', key) or '') or 0) + seconds
      redis.call('SET', key, string.format('%.3f', spent), 'EX', math.ceil(2 * setting(row, 'window_s')))
    end
  end
end
