-- include: entries
-- Find jobs whose message the broker has lost, and have them published again.
--
-- A worker takes a message off its list before it notes it as unacknowledged; dying in
-- between, it takes the message along. Lists are taken from in the order in which they were filled, so a
-- job whose message would come before the next one of its list has lost it, unless it is being taken
-- just now, or was sent at about the same time by somebody else (ARGV[4]); so has any job whose list is empty. However long a lane's backlog is, a lost message is
-- found when what was sent after it is about to be taken. A message too many would be answered `busy`
-- or `final`.
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
local retries = tonumber(ARGV[6])
local nexts, being_taken = {}, nil

-- When the message was sent that is next in the list for messages of this priority, of the retry queue
-- or of the other one: beyond all times when there is none, 0 when nobody knows.
local function next_sent(is_retry, priority)
  local list, best = nil, -1
  for i = is_retry and 5 or 5 + retries, is_retry and 4 + retries or #KEYS do
    local step = tonumber(string.match(KEYS[i], '\6\22(%d+)$') or '0')
    if step <= priority and step > best then list, best = KEYS[i], step end
  end
  if not list then return 0 end
  if not nexts[list] then
    local message = redis.call('LINDEX', list, -1)
    local id = message and string.match(message, '"id": *"([^"]*)"')
    id = id and string.gsub(string.gsub(id, '%.cancel$', ''), '%.%d+$', '')
    nexts[list] = message and tonumber(id and redis.call('ZSCORE', KEYS[1], id) or '0') or math.huge
  end
  return nexts[list]
end
local function is_lost(id, sent, priority, is_retry)
  if next_sent(is_retry, priority) <= sent + tonumber(ARGV[4]) then return false end
  being_taken = being_taken or table.concat(redis.call('HVALS', KEYS[4]), '\n')
  return not string.find(being_taken, id, 1, true)
end
local passed = ARGV[1] .. 'reconcile:' .. ARGV[2]
local function look(key, age)
  local from = tonumber(redis.call('HGET', passed, key) or '0')
  local ids = redis.call('ZRANGEBYSCORE', key, '-inf', string.format('%.6f', now - tonumber(age)),
    'LIMIT', from, ARGV[5])
  local stay = 0
  for _, id in ipairs(ids) do
    local f = fields_of(ARGV[1] .. 'traj:' .. id, 'state', 'lane', 'priority')
    local waits = f[1] == 'queued' and redis.call('ZSCORE', KEYS[1], id)
    local is_retry = redis.call('ZSCORE', KEYS[2], id)
    if not waits or f[2] == ARGV[2] and is_lost(id, tonumber(waits), tonumber(f[3] or '') or 0, is_retry) then
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
look(KEYS[2], ARGV[4])
look(KEYS[1], ARGV[3])
return found
