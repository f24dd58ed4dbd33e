-- @include time
-- Find objects of the store that no body names any more.
--
-- @key objects, doomed = objects:doomed  both as in object_note.lua
-- @arg prefix
-- @arg base  URL below which the objects of this store are
-- @arg grace_s  until an object that is needed, or is of another store, is looked at again
-- @arg again_s  until one that is named here is named again, if nobody reports that it is gone
-- @arg most  objects looked at
-- Returns those to be deleted, "<trajectory id> <url>" each. They cannot be published any more.
redis.call('ZREM', objects, '')  -- first, so that a Redis that is full lets it pass, see trim.lua

local function needed(member)
  local id, url = string.match(member, '^(%S+) (.*)$')
  if string.sub(url, 1, #base) ~= base then return true end
  local body = prefix .. 'body:' .. id
  local size = redis.call('STRLEN', body)  -- a claim is short, and a body need not be copied
  local claim = size > 0 and size < 8192 and redis.call('GET', body)
  return claim and string.find(claim, '"' .. url .. '"', 1, true)
end

for _, member in ipairs(redis.call('ZRANGEBYSCORE', objects, '-inf', stamp(now), 'LIMIT', 0, most)) do
  if needed(member) then
    redis.call('ZADD', objects, stamp(now + tonumber(grace_s)), member)
  else
    redis.call('ZREM', objects, member)
    redis.call('ZADD', doomed, stamp(now), member)
  end
end
local found = redis.call('ZRANGEBYSCORE', doomed, '-inf', stamp(now), 'LIMIT', 0, most)
for _, member in ipairs(found) do
  redis.call('ZADD', doomed, stamp(now + tonumber(again_s)), member)
end
return found
