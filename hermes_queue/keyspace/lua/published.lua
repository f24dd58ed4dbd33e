-- include: entries
-- The messages of these jobs are in the broker: nobody needs to publish them any more.
--
-- KEYS[1] delayed  KEYS[2] waiting (zset: jobs whose message is in the broker, by time)
-- KEYS[3] waiting:retry: those of them whose message is in a retry queue, for `reconcile`
-- ARGV[1] prefix  ARGV[2] score they were claimed under, or '' for whatever score they have
-- ARGV[3] '1' when the messages are in retry queues
-- ARGV[4...] ids. A job that was delayed anew meanwhile, because its message was answered `held`
-- or its first attempt has failed, has another score and stays; one that a worker has begun
-- meanwhile waits no more.
local t = redis.call('TIME')
local stamp = string.format('%.6f', tonumber(t[1]) + tonumber(t[2]) / 1e6)
local n = 0
for i = 4, #ARGV do
  local score = redis.call('ZSCORE', KEYS[1], ARGV[i])
  if score and (ARGV[2] == '' or math.abs(tonumber(score) - tonumber(ARGV[2])) < 1e-5) then
    n = n + redis.call('ZREM', KEYS[1], ARGV[i])
    if fields_of(ARGV[1] .. 'traj:' .. ARGV[i], 'state')[1] == 'queued' then
      redis.call('ZADD', KEYS[2], stamp, ARGV[i])
      if ARGV[3] == '1' then redis.call('ZADD', KEYS[3], stamp, ARGV[i]) end
    end
  end
end
if ARGV[3] == '1' then redis.call('EXPIRE', KEYS[3], 86400) end
return n
