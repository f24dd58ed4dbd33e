-- What `sched_tick` does for a leaf.
local IDLE_S = 86400  -- after which a leaf without jobs is forgotten

-- Charge a child of a node, open or shut.
local function charge_child(node, child, seconds, at, half)
  for _, key in ipairs({open_set(node), shut_set(node)}) do
    local point = redis.call('ZSCORE', key, child)
    if point then redis.call('ZADD', key, stamp(later(point, seconds, at, half)), child) return end
  end
end

-- The leaf's running jobs and sum; fewer if its run has fewer, of which an older version has ended some.
local function state_of(leaf, lane, team, run_id, env)
  local known = redis.call('HMGET', running, leaf, 'limits')
  local r, c = counts_in(known[1])
  local most = r > 0 and tonumber(redis.call('HGET', prefix .. 'run:' .. run_id, 'running') or '') or 0
  if r > most then
    for _, name in ipairs(known[2] and {'lane|' .. lane, 'team|' .. team, 'env|' .. env} or {}) do
      redis.call('HINCRBY', running, name, most - r)
    end
    r, c = most, c * most / r
    redis.call('HSET', running, leaf, string.format('%d %.3f', r, c))
  end
  return r, c
end

-- Charge what was not charged yet.
local function settle_leaf(leaf, lane, team, run_id, env, seconds, at, half)
  local in_team = lane .. '|' .. team
  local rows = redis.call('HMGET', sched, 'env|' .. env, 'run|' .. run_id, 'team|' .. team, 'u|' .. lane)
  local own = setting(rows[2] or nil, 'weight') or tonumber(redis.call('HGET', prefix .. 'run:' .. run_id, 'weight') or '')
  charge_child(in_team .. '|' .. run_id, env, seconds / weight_of(rows[1] or nil), at, half)
  charge_child(in_team, run_id, seconds / math.max(1e-3, own or 1), at, half)
  charge_child(lane, team, seconds / weight_of(rows[3] or nil), at, half)
  redis.call('HSET', sched, 'u|' .. lane, stamp(later(rows[4] or nil, seconds, at, half)))
end

local function is_open(lane, team, run_id, env)
  local in_team = lane .. '|' .. team
  return redis.call('ZSCORE', open_set(in_team .. '|' .. run_id), env)
    and redis.call('ZSCORE', open_set(in_team), run_id) and redis.call('ZSCORE', open_set(lane), team)
end

local function is_blocked(leaf, team, run_id, env)
  for _, name in ipairs({'run|' .. run_id, 'team|' .. team, 'env|' .. env, 'held|' .. leaf}) do
    if redis.call('SISMEMBER', prefix .. 'sched:blocked:' .. name, leaf) == 1 then return true end
  end
end

-- Returns whether the leaf is forgotten now.
local function visit(leaf, at, half)
  local lane, team, run_id, env = parts_of_leaf(leaf)
  if not lane then error('not a leaf') end
  local r, c = state_of(leaf, lane, team, run_id, env)
  local due = r * (at + RUNNING_S)
  if not (math.abs(due - c) <= 1e-3) then
    if math.abs(due - c) < 1e12 then settle_leaf(leaf, lane, team, run_id, env, due - c, at, half) end  -- else junk
    redis.call('HSET', running, leaf, string.format('%d %.3f', r, due))
  end
  local waiting = redis.call('ZCARD', jobs_of(leaf))
  if waiting > 0 then
    waits_in[lane] = (waits_in[lane] or 0) + waiting
    if not (is_open(lane, team, run_id, env) or is_blocked(leaf, team, run_id, env)) then open_way(leaf) end
    return false
  end
  local since = r == 0 and tonumber(redis.call('ZSCORE', leaves, leaf) or '')
  if not since or math.abs(now - since) < IDLE_S then return false end
  redis.call('HDEL', running, leaf)
  redis.call('ZREM', leaves, leaf)
  return true
end
