-- include: budget
-- include: numbers
-- include: entries
-- Take the lease of one trajectory, or say why not.
--
-- KEYS[1] traj:{id}  KEYS[2] leases  KEYS[3] delayed  KEYS[4] waiting  KEYS[5] run:{id}
-- KEYS[6] results  KEYS[7] results:bytes  KEYS[8] group:{id}
-- ARGV[1] id  ARGV[2] attempt in the message  ARGV[3] owner  ARGV[4] lease, s
-- ARGV[5] nonce of this delivery: repeating a call whose answer was lost answers the same
-- ARGV[6] prefix  ARGV[7] most groups, ARGV[8] most bytes in the stream for a new group
-- Returns {verdict, epoch, attempt, deaths, job, used seconds, attempts, a warning about the run's
-- budget or '', policy version of the run or '', since when it was queued, or '' when nobody knows,
-- when this lease was taken, why it shall end as cancelled or '', '1' when some item is known to be
-- poison}, verdict being
-- run | held | paused | final | cancelled | surplus | stale_attempt | busy | unknown; of all but
-- `run` only the verdict, and of `held` and `paused` the warning.
-- held: the circuit breaker of its lane is open, or too many results wait for their readers
-- and its group has not begun, or what is left of the run's budget is set aside for others;
-- the job is delayed and uses no attempt.
-- paused: the run is; the job is parked in run:{id}:parked until it goes on.
-- cancelled: it was, or its run is and now the job is too.
-- One that is to end as cancelled begins whatever else would hold it back.
-- An expired lease is `busy` too: only the sweep takes a job back, so that deaths count.
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1e6
local refused = refused_number({{'attempt', ARGV[2], 0, EXACT, true}, {'lease, s', ARGV[4], 0, 1e9},
  {'most groups', ARGV[7], 0, EXACT}, {'most bytes', ARGV[8], 0, EXACT}})
if refused then return refused end
local f = fields_of(KEYS[1], 'state', 'attempt', 'job', 'nonce', 'lane', 'epoch')
local state, attempt, job = f[1], f[2], f[3]
if not state then return {'unknown'} end
if state == 'final' or state == 'cancelled' or state == 'surplus' then return {state} end
if not (job and is_job(ARGV[1], f[5], attempt, f[6])) then return {'unknown'} end
if tonumber(ARGV[2]) < tonumber(attempt) then return {'stale_attempt'} end
local again = state == 'running' and f[4] == ARGV[5]
if state == 'running' and not again then return {'busy'} end
local said = ''
local cancel = redis.call('HGET', KEYS[1], 'cancel') or redis.call('HGET', KEYS[8], 'cancel') or ''
local function turned_away(run_state)
  local ttl = math.max(1, redis.call('TTL', KEYS[5]))
  redis.call('ZREM', KEYS[3], ARGV[1])
  redis.call('ZREM', KEYS[4], ARGV[1])
  if run_state == 'paused' then
    redis.call('SADD', KEYS[5] .. ':parked', ARGV[1])
    redis.call('EXPIRE', KEYS[5] .. ':parked', ttl)
  else
    redis.call('HDEL', KEYS[1], 'job', 'attempts')
    redis.call('HSET', KEYS[1], 'state', 'cancelled')
    redis.call('EXPIRE', KEYS[1], ttl)
    redis.call('HINCRBY', KEYS[5], 'cancelled', 1)
  end
  return {run_state, said}
end
if not again then
  local run_state = redis.call('HGET', KEYS[5], 'state')
  if run_state == 'cancelled' or run_state == 'paused' and cancel == '' then return turned_away(run_state) end
end
if not again and cancel == '' then
  local key = ARGV[6] .. 'lane:' .. f[5]
  local lane = redis.call('HMGET', key, 'state', 'until', 'open_s', 'probe')
  local free_at = 0
  if lane[1] == 'open' then
    free_at = tonumber(lane[2])
    if free_at <= now then redis.call('HSET', key, 'state', 'half_open') end
  elseif lane[1] == 'half_open' then
    free_at = tonumber(lane[4] or '0') + tonumber(lane[3])  -- a probe that is never heard of
  end
  if free_at <= now and redis.call('HEXISTS', KEYS[8], 'begun') == 0
    and (redis.call('XLEN', KEYS[6]) >= tonumber(ARGV[7])
      or tonumber(redis.call('GET', KEYS[7]) or '0') >= tonumber(ARGV[8])) then
    free_at = now + 5 + 5 * (now % 1)
  end
  if free_at <= now then
    local kept
    kept, said = budget_reserve(KEYS[5], KEYS[1], job, now)
    if kept == 'paused' then return turned_away(kept) end
    if kept then free_at = now + 5 + 5 * (now % 1) end
  end
  if free_at > now then
    redis.call('ZREM', KEYS[4], ARGV[1])
    redis.call('ZADD', KEYS[3], string.format('%.6f', math.min(free_at, now + 30)), ARGV[1])
    return {'held', said}
  end
  if lane[1] then redis.call('HSET', key, 'probe', string.format('%.6f', now)) end
end
local epoch = tonumber(redis.call('HGET', KEYS[1], 'epoch'))
if not again then
  epoch = redis.call('HINCRBY', KEYS[1], 'epoch', 1)
  if redis.call('EXISTS', KEYS[8]) == 1 then redis.call('HSET', KEYS[8], 'begun', '1') end
  redis.call('HSET', KEYS[1], 'state', 'running', 'owner', ARGV[3], 'nonce', ARGV[5], 'stage', 'load',
    'begun', string.format('%.6f', now))
  if redis.call('EXISTS', KEYS[5]) == 1 then redis.call('HINCRBY', KEYS[5], 'running', 1) end
end
redis.call('ZADD', KEYS[2], string.format('%.6f', now + tonumber(ARGV[4])), ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('ZREM', KEYS[4], ARGV[1])
local g = redis.call('HMGET', KEYS[1], 'quarantine_deaths', 'used', 'attempts', 'queued', 'begun',
  'unseen_deaths')
-- One that a living parent saw is the job's own; of those with the parent there may be other causes.
local deaths = tonumber(g[1] or '0') + math.floor(tonumber(g[6] or '0') / 3)
-- A job that was never given back has waited since its group was enqueued.
local queued = g[4] or redis.call('HGET', KEYS[8], 'created') or ''
return {'run', epoch, tonumber(attempt), deaths, job, g[2] or '0', g[3] or '', said,
  redis.call('HGET', KEYS[5], 'policy_version') or '', queued, g[5] or '', cancel,
  redis.call('EXISTS', ARGV[6] .. 'poison') == 1 and '1' or ''}
