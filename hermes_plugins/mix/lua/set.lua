-- @include numbers
-- Change the settings of a mix while it is served. They outlive its producer.
--
-- @key mix = mix:{name}, live = mix:{name}:live
-- @arg ttl_s
-- @arg changes[setting, value]  value '' = as the file says
-- Returns 1; 0 if the mix is unknown.
local refused = refused_number({{'TTL of the mix, s', ttl_s, 1, 1e9, true}})
if refused then return refused end
if redis.call('HEXISTS', mix, 'fence') == 0 then return 0 end
for _, change in ipairs(changes) do
  if change.value == '' then
    redis.call('HDEL', live, change.setting)
  else
    redis.call('HSET', live, change.setting, change.value)
  end
end
redis.call('EXPIRE', live, ttl_s)
return 1
