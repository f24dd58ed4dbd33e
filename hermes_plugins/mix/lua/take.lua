-- @include time, hash, numbers, healing
-- A producer takes a mix for itself, or keeps it: one process serves a mix at a time.
--
-- @key mix = mix:{name}, live = mix:{name}:live, rows = mix:{name}:rows
-- @key mixes  names by the time of their last start
-- @arg prefix, name
-- @arg owner  random, of one process
-- @arg facts  JSON about this process, for people
-- @arg lease_s, ttl_s
-- @answer verdict, fence, seq, state, pending, facts, beats, left_s  verdict: taken | held; of one that
--      is held only the last three, about the process that has it
-- A lease that ends later than one from now on can is of a clock that was set back, and counts as over.
local refused = refused_number({{'lease, s', lease_s, 0.01, 1e6}, {'TTL of the mix, s', ttl_s, 1, 1e9, true}})
if refused then return refused end
local known = hash(mix, 'owner', 'facts', 'until', 'beats', 'fence', 'seq', 'state', 'pending')
local left = (tonumber(known['until'] or '') or 0) - now
if known.owner and known.owner ~= owner and left > 0 and left <= tonumber(lease_s) then
  return {'held', '', '', '', '', known.facts or '', known.beats or '0', stamp(left)}
end
local fence = known.owner == owner and tonumber(known.fence or '') or (tonumber(known.fence or '') or 0) + 1
redis.call('HSET', mix, 'owner', owner, 'facts', facts, 'fence', fence, 'started', stamp(now),
  'until', stamp(now + tonumber(lease_s)), 'beats', (tonumber(known.beats or '') or 0) + 1)
redis.call('HDEL', mix, 'ended')
healing('ZREMRANGEBYSCORE', mixes, '-inf', stamp(now - tonumber(ttl_s)))
redis.call('ZADD', mixes, stamp(now), name)
for _, key in ipairs({mix, live, rows, mixes}) do redis.call('EXPIRE', key, ttl_s) end
return {'taken', redis.call('HGET', mix, 'fence'), known.seq or '0', known.state or '', known.pending or ''}
