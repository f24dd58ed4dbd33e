-- @include time, clock, hash
-- Ask for permission to call a model endpoint: one of its concurrent calls, and room in its buckets.
--
-- @key endpoint = limit:{name}  limit, ceiling, steady, rounds, decreased_at, pause_until, hold_s,
--      rpm_tat, tpm_tat, at (time of the last call, to notice a clock that was set back); counters
--      granted, refused, paused
-- @key leases = limit:{name}:leases  request id -> end of its lease
-- @key waiting = limit:{name}:waiting  request id -> time of its first try, which is its rank
-- @key seen = limit:{name}:seen  request id -> time until which it is believed to be alive
-- @arg id  of the request
-- @arg lease_s
-- @arg asked_at  time of its first try, '' = now
-- @arg start_calls, min_calls, max_calls  of the limit
-- @arg requests_per_minute, tokens_per_minute  0 = unlimited
-- @arg tokens  of this call
-- @arg burst_s  seconds of a bucket's rate that may be used at once
-- @arg state_ttl_s  expiry of all these keys
-- @answer granted, wait_s, at, since, among  0 | 1, seconds to wait, now, its first try, leases
-- Granted: the call may begin after the wait, which is at most HORIZON. Otherwise ask again after the
-- wait. Strictly first come, first served: a free place is kept for the oldest waiting request until
-- that one has not asked again for longer than its wait. A leased id is granted again.
local HORIZON = 1      -- how far ahead room in a bucket is promised, s
local LONGEST = 10     -- longest wait: a pause may end sooner than announced
local SHORTEST = 0.005
local since = math.min(tonumber(asked_at) or now, now)

redis.call('ZREMRANGEBYSCORE', leases, '-inf', stamp(now))
for _, silent in ipairs(redis.call('ZRANGEBYSCORE', seen, '-inf', stamp(now), 'LIMIT', 0, 200)) do
  redis.call('ZREM', waiting, silent)
  redis.call('ZREM', seen, silent)
end
local at = tonumber(redis.call('HGET', endpoint, 'at') or '0')
if now < at then
  for _, key in ipairs({leases, waiting, seen}) do set_back_scores(key, at - now) end
  set_back_fields(endpoint, {'pause_until', 'rpm_tat', 'tpm_tat', 'decreased_at'}, at - now)
  redis.call('HSET', endpoint, 'at', stamp(now))
end
since = tonumber(redis.call('ZSCORE', waiting, id) or since)
local state = hash(endpoint, 'limit', 'pause_until', 'hold_s', 'rpm_tat', 'tpm_tat')
local limit = tonumber(state.limit) or tonumber(start_calls)
limit = math.max(tonumber(min_calls), math.min(limit, tonumber(max_calls)))
if redis.call('ZSCORE', leases, id) then
  return {1, '0', stamp(now), stamp(since), redis.call('ZCARD', leases)}
end

local pause = math.max(0, (tonumber(state.pause_until) or 0) - now)
local ahead = redis.call('ZCOUNT', waiting, '-inf', '(' .. stamp(since))
local free = math.floor(limit) - redis.call('ZCARD', leases)

-- A bucket (GCRA) is the time at which everything charged so far will have drained. A call may begin
-- once at most the burst is left, and is then charged in full, even if it is larger: so small calls
-- cannot overtake a big one for ever.
local delay, charged = 0, {}
local function bucket(field, per_minute, amount)
  if per_minute > 0 then
    local drained = math.max(tonumber(state[field]) or 0, now)
    local cost = amount * 60 / per_minute
    delay = math.max(delay, drained - now - tonumber(burst_s) + ahead * cost)
    charged[field] = drained + cost
  end
end
bucket('rpm_tat', tonumber(requests_per_minute), 1)
bucket('tpm_tat', tonumber(tokens_per_minute), tonumber(tokens))

local granted = pause == 0 and ahead < free and delay <= HORIZON
local wait = delay
if granted then
  redis.call('ZADD', leases, stamp(now + delay + tonumber(lease_s)), id)
  redis.call('ZREM', waiting, id)
  redis.call('ZREM', seen, id)
  for field, drained in pairs(charged) do redis.call('HSET', endpoint, field, stamp(drained)) end
  redis.call('HINCRBY', endpoint, 'granted', 1)
else
  -- A place becomes free every hold / limit seconds: ask twice before the turn is likely to come.
  local turn = 0.5 * math.max(0, ahead - free + 1) * (tonumber(state.hold_s) or 0.1) / limit
  wait = math.min(math.max(pause, delay - HORIZON / 2, math.min(turn, 5), SHORTEST), LONGEST)
  redis.call('ZADD', waiting, 'NX', stamp(since), id)
  redis.call('ZADD', seen, stamp(now + 2 * wait + 2), id)
end
redis.call('HSETNX', endpoint, 'limit', tostring(limit))
redis.call('HSET', endpoint, 'at', stamp(now))
for _, key in ipairs({endpoint, leases, waiting, seen}) do redis.call('EXPIRE', key, state_ttl_s) end
return {granted and 1 or 0, stamp(wait), stamp(now), stamp(since), redis.call('ZCARD', leases)}
