-- The tree of waiting jobs: lane, team, run, env. A leaf is `lane|team|run|env`; its jobs wait in the sorted
-- set sched:jobs:{leaf}. Each node above has its children in two sorted sets: in sched:open:{node} those
-- under which a job may begin, in sched:shut:{node} the others, as long as their usage is remembered.
-- A child's score is its usage as a point in time, see sched/usage.lua: the smallest one is next.
local HEAD_START_S = 600  -- a child that returns is at most this far ahead of the one that is next
local SHUT_TTL_S = 172800
local KEPT_S = 7776000  -- as runs
local AGE_S = 900  -- waiting for so long counts as one step of priority, so that nothing starves
local RETURNED, STARTED = -4e9, -2e9  -- classes of jobs that go before all others of their leaf

local function name_of_leaf(lane, team, run_id, env)
  local function plain(text, most) return (string.gsub(string.sub(text or '', 1, most or 200), '[|%s]', '/')) end
  return plain(lane, 300) .. '|' .. plain(team) .. '|' .. run_id .. '|' .. plain(env)
end

-- Lane, team, run and env; nil if it is not the name of a leaf.
local function parts_of_leaf(leaf) return string.match(leaf, '^([^|]+)|([^|]*)|([^|]+)|([^|]*)$') end

-- A leaf's field in sched:running, see begin/charge.lua: its number of running jobs, and its sum.
local function counts_in(text)
  local r, c = string.match(text or '', '^(%d+) (%S+)$')
  return tonumber(r or '') or 0, tonumber(c or '') or 0
end

local function open_set(node) return prefix .. 'sched:open:' .. node end
local function shut_set(node) return prefix .. 'sched:shut:' .. node end
local function jobs_of(leaf) return prefix .. 'sched:jobs:' .. leaf end

local function open_child(node, child)
  local open, shut = open_set(node), shut_set(node)
  if redis.call('ZSCORE', open, child) then return end
  local own = redis.call('ZSCORE', shut, child)
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

local function shut_child(node, child, score)
  redis.call('ZREM', open_set(node), child)
  if score then
    redis.call('ZADD', shut_set(node), stamp(tonumber(score)), child)
    redis.call('EXPIRE', shut_set(node), SHUT_TTL_S)
  end
end

-- The place of a job in its leaf: `rank` orders jobs that have waited since the same time (default: now).
local function place_of(priority, class, rank, since)
  local age = AGE_S * (tonumber(priority or '') or 0) + (rank or 0) * 1e-6
  return string.format('%.6f', (tonumber(since or '') or now) + (class or 0) + age)
end

-- Have jobs wait in a leaf: `flat` is a list of their places and ids, in turn.
local function put_in(leaf, flat)
  local lane = parts_of_leaf(leaf)
  if not lane or #flat == 0 then return end
  for first = 1, #flat, 1000 do
    redis.call('ZADD', jobs_of(leaf), unpack(flat, first, math.min(first + 999, #flat)))
  end
  redis.call('ZADD', prefix .. 'sched:leaves', stamp(now), leaf)
  for _, key in ipairs({jobs_of(leaf), prefix .. 'sched:leaves'}) do redis.call('EXPIRE', key, KEPT_S) end
  open_way(leaf)
end

-- A key of another type changes nothing.
local function take_out(leaf, id)
  if leaf then redis.pcall('ZREM', jobs_of(leaf), id) end
end
