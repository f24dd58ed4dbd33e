-- @include time
-- Find stored objects that no body refers to any more.
--
-- @key objects, doomed = objects:doomed  both as in object_note.lua
-- @arg prefix
-- @arg base  URL below which the objects of this store are
-- @arg grace_s  until the next check of an object that is needed or belongs to another store
-- @arg again_s  until an object is returned again, if nobody reports its deletion
-- @arg most  objects to check
-- Returns the objects to delete, "<trajectory id> <url>" each. They cannot be published any more.
redis.call('ZREM', objects, '')  -- first, so that a full Redis accepts the script, see trim.lua

local function needed(member)
  local id, url = string.match(member, '^(%S+) (.*)$')
  if string.sub(url, 1, #base) ~= base then return true end
  local body = prefix .. 'body:' .. id
  local size = redis.call('STRLEN', body)  -- a claim is short; do not copy a whole body
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
