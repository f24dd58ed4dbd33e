-- @include time, hash, bulk
-- Forget how far a mix has come, and its live settings. What it has enqueued stays.
--
-- @key mix = mix:{name}, live = mix:{name}:live, rows = mix:{name}:rows, mixes
-- @arg name, lease_s
-- Returns forgotten | unknown | held. HDEL, not DEL: the Redis user of producers could then delete runs.
local known = hash(mix, 'owner', 'until', 'fence')
local left = (tonumber(known['until'] or '') or 0) - now
if known.owner and left > 0 and left <= tonumber(lease_s) then return 'held' end
for _, key in ipairs({mix, live, rows}) do
  in_pieces(redis.call('HKEYS', key), function(some) redis.call('HDEL', key, unpack(some)) end)
end
redis.call('ZREM', mixes, name)
return known.fence and 'forgotten' or 'unknown'
