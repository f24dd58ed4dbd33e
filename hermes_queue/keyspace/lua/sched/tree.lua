-- @include healing, sched/leaf
-- The tree of waiting jobs: lane, team, run, env. Each node above the leaves has its children in two sorted sets: in
-- sched:open:{node} those under which a job may begin, in sched:shut:{node} the others, as long as their usage is
-- remembered. A child's score is its usage as a point in time, see sched/usage.lua: the smallest one is next.
local SHUT_TTL_S = 172800
local KEPT_S = 7776000  -- as runs
local AGE_S = 900  -- waiting for so long counts as one step of priority, so that nothing starves
local RETURNED, STARTED = -4e9, -2e9  -- classes of jobs that go before all others of their leaf

local function open_set(node) return prefix .. 'sched:open:' .. node end
local function shut_set(node) return prefix .. 'sched:shut:' .. node end

local function shut_child(node, child)
  local score = redis.call('ZSCORE', open_set(node), child)
  redis.call('ZREM', open_set(node), child)
  if score then
    healing('ZADD', shut_set(node), score, child)
    redis.call('EXPIRE', shut_set(node), SHUT_TTL_S)
  end
end

-- The place of a job in its leaf: `rank` orders jobs that have waited since the same time (default: now).
local function place_of(priority, class, rank, since)
  local age = AGE_S * (tonumber(priority or '') or 0) + (rank or 0) * 1e-6
  return string.format('%.6f', (tonumber(since or '') or now) + (class or 0) + age)
end
