-- Find jobs whose message the broker has lost, and have them published again.
--
-- A worker takes a message off its list before it notes it as unacknowledged; dying in
-- between, it takes the message along. When nothing is queued or unacknowledged and a job
-- still waits, its message is gone. A message too many would be answered `busy` or `final`.
--
-- KEYS[1] waiting  KEYS[2] delayed  KEYS[3] unacked (Celery's)  KEYS[4...] the queues' lists
-- ARGV[1] prefix  ARGV[2] lane  ARGV[3] least age, s  ARGV[4] most jobs
-- Returns the ids that were put into `delayed`.
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1e6
local old = string.format('%.6f', now - tonumber(ARGV[3]))
local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', old, 'LIMIT', 0, ARGV[4])
if #ids == 0 or redis.call('EXISTS', unpack(KEYS, 3)) > 0 then return {} end
local found = {}
for _, id in ipairs(ids) do
  local f = redis.call('HMGET', ARGV[1] .. 'traj:' .. id, 'state', 'lane')
  if f[1] ~= 'queued' then
    redis.call('ZREM', KEYS[1], id)
  elseif f[2] == ARGV[2] then
    redis.call('ZREM', KEYS[1], id)
    redis.call('ZADD', KEYS[2], string.format('%.6f', now), id)
    found[#found + 1] = id
  end
end
return found
