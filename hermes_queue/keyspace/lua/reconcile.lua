-- @include time, entries
-- Find jobs whose message the broker has lost, and have them published again.
--
-- A worker takes a message off its list before it notes it as unacknowledged; dying in
-- between, it takes the message along. Lists are taken from in the order in which they were filled, so a
-- job whose message would come before the next one of its list has lost it, unless it is being taken
-- just now, or was sent at about the same time by somebody else (`retry_age_s`); so has any job whose
-- list is empty. However long a lane's backlog is, a lost message is found when what was sent after it
-- is about to be taken. A message too many would be answered `busy` or `final`.
--
-- @key waiting, retries = waiting:retry, delayed
-- @key unacked  messages taken and not acknowledged (Celery)
-- @key retry_lists[], first_lists[]  of the lane's retry queue, and of its queue
-- @arg prefix, lane
-- @arg age_s, retry_age_s  younger jobs are left alone, in the queue and in the retry queue
-- @arg most  jobs looked at
-- All lanes wait in the same sets, so a call goes on where the lane's last one ended, and from the
-- oldest again after the youngest: jobs of a lane that nobody serves must not hide ours.
-- {prefix}reconcile:{lane} (hash) holds how many of each set were passed over.
-- Returns the ids that were put into `delayed`.
local found = {}
local nexts, being_taken = {}, nil

-- When the message was sent that is next in the list for messages of this priority, of the retry queue
-- or of the other one: beyond all times when there is none, 0 when nobody knows.
local function next_sent(is_retry, priority)
  local list, best = nil, -1
  for _, name in ipairs(is_retry and retry_lists or first_lists) do
    local step = tonumber(string.match(name, '\6\22(%d+)$') or '0')
    if step <= priority and step > best then list, best = name, step end
  end
  if not list then return 0 end
  if not nexts[list] then
    local message = redis.call('LINDEX', list, -1)
    local id = message and string.match(message, '"id": *"([^"]*)"')
    id = id and string.gsub(string.gsub(id, '%.cancel$', ''), '%.%d+$', '')
    nexts[list] = message and tonumber(id and redis.call('ZSCORE', waiting, id) or '0') or math.huge
  end
  return nexts[list]
end
local function is_lost(id, sent, priority, is_retry)
  if next_sent(is_retry, priority) <= sent + tonumber(retry_age_s) then return false end
  being_taken = being_taken or table.concat(redis.call('HVALS', unacked), '\n')
  return not string.find(being_taken, id, 1, true)
end
local passed = prefix .. 'reconcile:' .. lane
local function look(key, age)
  local from = tonumber(redis.call('HGET', passed, key) or '0')
  local ids = redis.call('ZRANGEBYSCORE', key, '-inf', stamp(now - tonumber(age)), 'LIMIT', from, most)
  local stay = 0
  for _, id in ipairs(ids) do
    local job = fields_of(prefix .. 'traj:' .. id, 'state', 'lane', 'priority')
    local waits = job.state == 'queued' and redis.call('ZSCORE', waiting, id)
    local is_retry = redis.call('ZSCORE', retries, id)
    if not waits or job.lane == lane and is_lost(id, tonumber(waits), tonumber(job.priority or '') or 0, is_retry) then
      redis.call('ZREM', waiting, id)
      redis.call('ZREM', retries, id)
      if waits then
        redis.call('ZADD', delayed, stamp(now), id)
        found[#found + 1] = id
      end
    else
      stay = stay + 1
    end
  end
  if #ids == tonumber(most) then
    redis.call('HSET', passed, key, from + stay)
    redis.call('EXPIRE', passed, 3600)
  elseif from > 0 then
    redis.call('HDEL', passed, key)
  end
end
look(retries, retry_age_s)
look(waiting, age_s)
return found
