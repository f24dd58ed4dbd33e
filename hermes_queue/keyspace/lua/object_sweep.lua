-- Find objects of the store that no body names any more.
--
-- KEYS[1] objects  KEYS[2] objects:doomed, both as in object_note.lua
-- ARGV[1] prefix  ARGV[2] URL below which the objects of this store are  ARGV[3] seconds until an
-- object that is needed, or is of another store, is looked at again  ARGV[4] seconds until one that
-- is named here is named again, if nobody says that it is gone  ARGV[5] most objects looked at
-- Returns those to be deleted, "<trajectory id> <url>" each. They cannot be published any more.
redis.call('ZREM', KEYS[1], '')  -- first, so that a Redis that is full lets it pass, see trim.lua
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1e6

local function stamp(in_s) return string.format('%.6f', now + in_s) end

local function needed(member)
  local id, url = string.match(member, '^(%S+) (.*)$')
  if string.sub(url, 1, #ARGV[2]) ~= ARGV[2] then return true end
  local body = ARGV[1] .. 'body:' .. id
  local size = redis.call('STRLEN', body)  -- a claim is short, and a body need not be copied
  local claim = size > 0 and size < 8192 and redis.call('GET', body)
  return claim and string.find(claim, '"' .. url .. '"', 1, true)
end

for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', stamp(0), 'LIMIT', 0, ARGV[5])) do
  if needed(member) then
    redis.call('ZADD', KEYS[1], stamp(tonumber(ARGV[3])), member)
  else
    redis.call('ZREM', KEYS[1], member)
    redis.call('ZADD', KEYS[2], stamp(0), member)
  end
end
local doomed = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', stamp(0), 'LIMIT', 0, ARGV[5])
for _, member in ipairs(doomed) do
  redis.call('ZADD', KEYS[2], stamp(tonumber(ARGV[4])), member)
end
return doomed
