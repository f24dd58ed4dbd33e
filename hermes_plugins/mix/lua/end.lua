-- @include time, hash
-- The producer of a mix lets go of it.
--
-- @key mix = mix:{name}
-- @arg fence
-- @arg why  it ends, for people
-- Returns 1; 0 if another process has the mix by now.
if hash(mix, 'fence').fence ~= fence then return 0 end
redis.call('HDEL', mix, 'owner', 'until')
redis.call('HSET', mix, 'ended', why)
return 1
