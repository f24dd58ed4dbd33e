-- @include time, clock, hash, flights/places
-- Trajectories in flight at one model engine, counted by the tokens of their contexts: what has
-- changed in one worker process, and which of its trajectories may go on.
--
-- @key engine = flights:{name}  kv, level, memo, until (of the last reading); absent (time until which
--      there are no metrics), turn (time of the last order to read), first, usual, grown, bound, at
-- @key flying = flights:{name}:flying  id -> time of its first try
-- @key tokens = flights:{name}:tokens  id -> tokens of its context, of those in flight
-- @key waiting = flights:{name}:waiting  id -> time of its first try, which is its rank
-- @key wanted = flights:{name}:wanted  id -> tokens that it needs
-- @key alive = flights:{name}:alive  id -> end of its lease
-- @arg lease_s, patience_s  of those in flight; of those that wait
-- @arg interval_s  between two readings
-- @arg probe_s  how long to wait for the first reading
-- @arg kv_tokens  of the cache, '' = as read
-- @arg fill  level before the first reading
-- @arg least  trajectories that may always be in flight
-- @arg grew  tokens by which contexts of this process have grown
-- @arg state_ttl_s  expiry of all these keys
-- @arg ended[id, mean]  no longer in flight or waiting; mean tokens of its context, 0 = unknown
-- @arg held[id, since, size]  in flight
-- @arg asking[id, since, size, known]  since '' = now; known '' = the size is an estimate
-- @answer verdict, at, turn, memo, grown, bound, granted, stopped, left_s
-- Verdicts: counted; absent: no metrics for `left_s` seconds, so nothing is counted; open: no reading,
-- so all are granted; asked: the first reading is awaited. A `turn` is an order to read the metrics and to report.
-- First come, first served. If contexts outgrow the cache, the youngest are stopped: each process
-- stops its own, and asks for them anew.
local at = tonumber(redis.call('HGET', engine, 'at') or '0')
if now < at then
  for _, key in ipairs({flying, waiting, alive}) do set_back_scores(key, at - now) end
  set_back_fields(engine, {'until', 'absent', 'turn', 'first'}, at - now)
end
redis.call('HSET', engine, 'at', stamp(now))
redis.call('HSETNX', engine, 'first', stamp(now))
for _, id in ipairs(redis.call('ZRANGEBYSCORE', alive, '-inf', stamp(now), 'LIMIT', 0, 1000)) do drop(id) end
local s = hash(engine, 'kv', 'level', 'until', 'absent', 'turn', 'first', 'usual', 'memo')
local usual = tonumber(s.usual)
for _, each in ipairs(ended) do
  drop(each.id)
  local mean = tonumber(each.mean)
  if mean > 0 then usual = usual and 0.95 * usual + 0.05 * mean or mean end
end
if usual then redis.call('HSET', engine, 'usual', stamp(usual)) end
local mine = {}
for _, each in ipairs(held) do
  if redis.call('ZREM', waiting, each.id) == 1 then redis.call('HDEL', wanted, each.id) end
  fly(each.id, each.since, each.size)
  mine[each.id] = true
end
for _, each in ipairs(asking) do
  redis.call('ZADD', waiting, 'NX', each.since == '' and stamp(now) or each.since, each.id)
  local size = tonumber(each.size)
  if each.known == '' and usual then size = math.min(size, usual) end
  redis.call('HSET', wanted, each.id, math.floor(size))
  redis.call('ZADD', alive, stamp(now + patience_s), each.id)
  mine[each.id] = true
end

local absent = (tonumber(s.absent) or 0) - now
local kv = tonumber(kv_tokens) or (now < (tonumber(s['until']) or 0) and tonumber(s.kv))
local verdict = kv and 'counted' or absent > 0 and 'absent'
  or not s.kv and now < tonumber(s.first) + probe_s and 'asked' or 'open'
local granted, stopped, bound = {}, {}, 0
if verdict == 'counted' then
  local room, ahead = kv * (tonumber(s.level) or fill), AHEAD * (usual or 0)
  local places = stop_youngest(mine, room, ahead, stopped)
  bound = begin_first(mine, room - MARGIN * kv, ahead, places, granted)
elseif verdict == 'absent' then
  for id in pairs(mine) do drop(id) end
  for _, each in ipairs(asking) do granted[#granted + 1] = each.id end
elseif verdict == 'open' then
  for _, each in ipairs(asking) do
    local since, size = redis.call('ZSCORE', waiting, each.id), redis.call('HGET', wanted, each.id)
    drop(each.id)
    fly(each.id, since, size)
    granted[#granted + 1] = each.id
  end
end
local turn = ''
if absent <= 0 and now - (tonumber(s.turn) or 0) >= tonumber(interval_s) then
  turn = stamp(now)
  redis.call('HSET', engine, 'turn', turn)
end
local grown = redis.call('HINCRBY', engine, 'grown', math.floor(tonumber(grew)))
bound = redis.call('HINCRBY', engine, 'bound', bound)
for _, key in ipairs({engine, flying, tokens, waiting, wanted, alive}) do redis.call('EXPIRE', key, state_ttl_s) end
return {verdict, stamp(now), turn, s.memo or '', grown, bound, granted, stopped, stamp(math.max(0, absent))}
