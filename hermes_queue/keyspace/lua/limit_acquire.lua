-- include: clock
-- Ask for leave to call a model endpoint: one of its concurrent calls, and room in its buckets.
--
-- KEYS[1] limit:{name}          hash: limit, ceiling, steady, rounds, decreased_at, pause_until,
--                               hold_s, rpm_tat, tpm_tat, at (the last call, so that a clock that
--                               was set back is noticed); counters granted, refused, paused
-- KEYS[2] limit:{name}:leases   zset: request id -> end of its lease
-- KEYS[3] limit:{name}:waiting  zset: request id -> when it first asked; who is before whom
-- KEYS[4] limit:{name}:seen     zset: request id -> until when it is believed to be alive
-- ARGV[1] request id  ARGV[2] lease, s  ARGV[3] when it first asked, '' = now
-- ARGV[4] first limit  ARGV[5] least  ARGV[6] greatest
-- ARGV[7] calls a minute, 0 = any  ARGV[8] tokens a minute, 0 = any  ARGV[9] tokens of this call
-- ARGV[10] seconds' worth of a bucket that may be used at once  ARGV[11] seconds all this is kept
-- Returns {granted 0 | 1, seconds to wait, now, when it first asked, leases}. Granted: the call
-- may begin after the wait, at most HORIZON. Else: ask again after the wait. Strictly first come,
-- first served: a free place is kept for whoever has asked first, until that one has not asked
-- again for longer than it was told to wait. An id that is leased is granted again.
local HORIZON = 1      -- how far ahead room in a bucket is promised, s
local LONGEST = 10     -- nobody is told to wait longer: a pause may be over sooner than was said
local SHORTEST = 0.005
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1e6
local function text(value) return string.format('%.6f', value) end
local id, since = ARGV[1], math.min(tonumber(ARGV[3]) or now, now)

redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', text(now))
for _, silent in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', text(now), 'LIMIT', 0, 200)) do
  redis.call('ZREM', KEYS[3], silent)
  redis.call('ZREM', KEYS[4], silent)
end
local at = tonumber(redis.call('HGET', KEYS[1], 'at') or '0')
if now < at then
  for i = 2, 4 do set_back_scores(KEYS[i], at - now) end
  set_back_fields(KEYS[1], {'pause_until', 'rpm_tat', 'tpm_tat', 'decreased_at'}, at - now)
  redis.call('HSET', KEYS[1], 'at', text(now))
end
since = tonumber(redis.call('ZSCORE', KEYS[3], id) or since)
local state = redis.call('HMGET', KEYS[1], 'limit', 'pause_until', 'hold_s', 'rpm_tat', 'tpm_tat')
local limit = tonumber(state[1]) or tonumber(ARGV[4])
limit = math.max(tonumber(ARGV[5]), math.min(limit, tonumber(ARGV[6])))
if redis.call('ZSCORE', KEYS[2], id) then
  return {1, '0', text(now), text(since), redis.call('ZCARD', KEYS[2])}
end

local pause = math.max(0, (tonumber(state[2]) or 0) - now)
local ahead = redis.call('ZCOUNT', KEYS[3], '-inf', '(' .. text(since))
local free = math.floor(limit) - redis.call('ZCARD', KEYS[2])

-- A bucket (GCRA) is the moment at which all that was charged will have drained. A call may
-- begin once no more than the burst is left, and is charged then, whatever its size: so a big
-- call is not overtaken for ever by small ones.
local burst = tonumber(ARGV[10])
local delay, charged = 0, {}
local function bucket(field, stored, per_minute, amount)
  if per_minute > 0 then
    local drained = math.max(tonumber(stored) or 0, now)
    local cost = amount * 60 / per_minute
    delay = math.max(delay, drained - now - burst + ahead * cost)
    charged[field] = drained + cost
  end
end
bucket('rpm_tat', state[4], tonumber(ARGV[7]), 1)
bucket('tpm_tat', state[5], tonumber(ARGV[8]), tonumber(ARGV[9]))

local granted = pause == 0 and ahead < free and delay <= HORIZON
local wait = delay
if granted then
  redis.call('ZADD', KEYS[2], text(now + delay + tonumber(ARGV[2])), id)
  redis.call('ZREM', KEYS[3], id)
  redis.call('ZREM', KEYS[4], id)
  for field, drained in pairs(charged) do
    redis.call('HSET', KEYS[1], field, text(drained))
  end
  redis.call('HINCRBY', KEYS[1], 'granted', 1)
else
  -- Places come free every hold / limit seconds: look twice before one's turn is likely to come.
  local turn = 0.5 * math.max(0, ahead - free + 1) * (tonumber(state[3]) or 0.1) / limit
  wait = math.max(pause, delay - HORIZON / 2, math.min(turn, 5), SHORTEST)
  wait = math.min(wait, LONGEST)
  redis.call('ZADD', KEYS[3], 'NX', text(since), id)
  redis.call('ZADD', KEYS[4], text(now + 2 * wait + 2), id)
end
redis.call('HSETNX', KEYS[1], 'limit', tostring(limit))
redis.call('HSET', KEYS[1], 'at', text(now))
for i = 1, 4 do
  redis.call('EXPIRE', KEYS[i], ARGV[11])
end
return {granted and 1 or 0, text(wait), text(now), text(since), redis.call('ZCARD', KEYS[2])}
