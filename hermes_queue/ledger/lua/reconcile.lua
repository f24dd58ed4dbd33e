-- Find jobs whose message the broker has lost, and have them published again.
--
-- A worker takes a message off its list before it notes it as unacknowledged; dying in
-- between, it takes the message along. When nothing is queued or unacknowledged and a job
-- still waits, its message is gone. The queue of retries is polled first, so it is empty most
-- of the time: what came back from a dead worker need not wait until all of a lane is done.
-- A message too many would be answered `busy` or `final`.
--
-- KEYS[1] waiting  KEYS[2] waiting:retry  KEYS[3] delayed  KEYS[4] unacked (Celery's)
-- KEYS[5...] the lists of the lane's retry queue, then those of its queue
-- ARGV[1] prefix  ARGV[2] lane  ARGV[3] least age, s  ARGV[4] likewise in the retry queue
-- ARGV[5] most jobs looked at  ARGV[6] number of lists of the retry queue
-- All lanes wait in the same sets, so a call goes on where the lane's last one ended, and from the
-- oldest again after the youngest: jobs of a lane that nobody serves must not hide ours.
-- {prefix}reconcile:{lane} (hash) holds how many of each set were passed over.
-- Returns the ids that were put into `delayed`.
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1e6
local found = {}
local passed = ARGV[1] .. 'reconcile:' .. ARGV[2]
local function look(key, age, lost)
  local from = tonumber(redis.call('HGET', passed, key) or '0')
  local ids = redis.call('ZRANGEBYSCORE', key, '-inf', string.format('%.6f', now - tonumber(age)),
    'LIMIT', from, ARGV[5])
  local stay = 0
  for _, id in ipairs(ids) do
    local f = redis.call('HMGET', ARGV[1] .. 'traj:' .. id, 'state', 'lane')
    local waits = f[1] == 'queued' and redis.call('ZSCORE', KEYS[1], id)
    if not waits or lost and f[2] == ARGV[2] then
      redis.call('ZREM', KEYS[1], id)
      redis.call('ZREM', KEYS[2], id)
      if waits then
        redis.call('ZADD', KEYS[3], string.format('%.6f', now), id)
        found[#found + 1] = id
      end
    else
      stay = stay + 1
    end
  end
  if #ids == tonumber(ARGV[5]) then
    redis.call('HSET', passed, key, from + stay)
    redis.call('EXPIRE', passed, 3600)
  elseif from > 0 then
    redis.call('HDEL', passed, key)
  end
end
local retries = {}
for i = 4, 4 + tonumber(ARGV[6]) do retries[#retries + 1] = KEYS[i] end
look(KEYS[2], ARGV[4], redis.call('EXISTS', unpack(retries)) == 0)
look(KEYS[1], ARGV[3], redis.call('EXISTS', unpack(KEYS, 4)) == 0)
return found
