-- @include time, entries
-- Find jobs whose message the broker has lost, and have them published again.
--
-- A worker takes a message off its list before it notes it as unacknowledged; if it dies in between,
-- the message is lost. Lists are consumed in the order in which they were filled. So a message is lost
-- if it is older than the next one of its list, or if its list is empty; except while a worker is
-- taking it, or if somebody else sent the other at about the same time (`retry_age_s`). However long
-- the lane's backlog is, a lost message is found as soon as a later one is next. A superfluous message
-- does no harm: `begin` answers it `busy` or `final`.
--
-- @key waiting, retries = waiting:retry, delayed
-- @key unacked  messages taken and not acknowledged (Celery)
-- @key retry_lists[], first_lists[]  of the lane's retry queue, and of its first queue
-- @arg prefix, lane
-- @arg age_s, retry_age_s  younger jobs are left alone, in the queue and in the retry queue
-- @arg most  jobs to check
-- All lanes wait in the same sets, so each call continues where the lane's last one ended, and starts
-- again at the oldest after the youngest: else jobs of a lane that nobody serves would hide ours.
-- {prefix}reconcile:{lane} (hash) holds the number of skipped jobs per set.
-- Returns the ids that were put into `delayed`.
local found = {}
local nexts, being_taken = {}, nil

-- Time at which the next message was sent, in the list for this priority of the retry queue or of the
-- first one: infinity if the list is empty, 0 if unknown.
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
