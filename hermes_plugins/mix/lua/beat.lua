-- @include time, hash
-- The producer of a mix keeps its lease, and hears what has changed.
--
-- @key mix = mix:{name}, live = mix:{name}:live, run = run:{name}
-- @arg fence
-- @arg lease_s
-- @arg live_max  fields of the settings that are read; more are another program's doing
-- @arg counters[]  fields of the run
-- @answer verdict, state, counters, settings  verdict: ok | lost; the run's state and counters; fields
--      and values of the live settings
local known = hash(mix, 'fence', 'beats')
if known.fence ~= fence then return {'lost'} end
redis.call('HSET', mix, 'until', stamp(now + tonumber(lease_s)), 'beats', (tonumber(known.beats or '') or 0) + 1)
local settings = {}
if redis.call('HLEN', live) <= tonumber(live_max) then
  for _, name in ipairs(redis.call('HKEYS', live)) do
    if #name <= 100 and redis.call('HSTRLEN', live, name) <= 100 then  -- others set nothing
      settings[#settings + 1], settings[#settings + 2] = name, redis.call('HGET', live, name)
    end
  end
end
local counted = redis.call('HMGET', run, unpack(counters))
for place, value in ipairs(counted) do counted[place] = value or '' end
return {'ok', redis.call('HGET', run, 'state') or '', counted, settings}
