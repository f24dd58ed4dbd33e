-- @include time, numbers, hash
-- Count the outcomes of attempts on one lane, or of those that called one endpoint and model; open or close the
-- circuit breaker of the lane, or of the endpoint in this lane.
--
-- @key state_of = lane:{breaker}  state (open | half_open; closed when absent), cause, message, opened,
--                                 until, open_s, probe, run (of the last attempt that failed of the cause)
-- @key outcomes = lane:{breaker}:outcomes  "<bucket>:<cause>" -> attempts; cause '' = no failure
-- @key endpoints = lane:{lane}:endpoints  those whose breakers are not closed -> what people call them
-- @arg endpoint, label  as there; '' = the breaker is the lane's
-- @arg window_s
-- @arg rate, min_failures  share and number of failures; the breaker opens when both are reached
-- @arg open_s, open_max_s  seconds that it stays open the first time, and at most
-- @arg causes  counted causes, comma-separated
-- @arg ended[cause, attempts, message, run]  attempts by cause, with an example of its message and run
-- The window consists of six buckets. While the breaker is open no job begins; then one probe at a
-- time does: an attempt that does not fail of the cause closes the breaker, one that does opens
-- it for twice as long. Returns the state that was entered (open | closed), or ''.
local checked = {{'window, s', window_s, 1e-3, 1e9}, {'failure rate', rate, 0, 1},
  {'least failures', min_failures, 0, EXACT}, {'seconds open', open_s, 0, 1e9}, {'longest, s', open_max_s, 0, 1e9}}
for _, each in ipairs(ended) do checked[#checked + 1] = {'attempts', each.attempts, 0, 1e15, true} end
local refused = refused_number(checked)
if refused then return refused end
local bucket = math.floor(now / (tonumber(window_s) / 6))
local counts, fresh, messages, runs = {}, {}, {}, {}
for _, each in ipairs(ended) do
  redis.call('HINCRBY', outcomes, bucket .. ':' .. each.cause, each.attempts)
  fresh[each.cause] = tonumber(each.attempts)
  messages[each.cause], runs[each.cause] = each.message, each.run
end
redis.call('EXPIRE', outcomes, math.ceil(2 * tonumber(window_s)))
local flat = redis.call('HGETALL', outcomes)
local total = 0
for i = 1, #flat, 2 do
  local at, cause = string.match(flat[i], '^(%d+):(.*)$')
  if tonumber(at) <= bucket - 6 then
    redis.call('HDEL', outcomes, flat[i])
  else
    counts[cause] = (counts[cause] or 0) + tonumber(flat[i + 1])
    total = total + tonumber(flat[i + 1])
  end
end

local function open(cause, seconds, message)
  redis.call('HSET', state_of, 'state', 'open', 'cause', cause, 'message', message,
    'until', stamp(now + seconds), 'open_s', tostring(seconds), 'run', runs[cause] or '')
  redis.call('HSETNX', state_of, 'opened', stamp(now))
  redis.call('EXPIRE', state_of, math.ceil(seconds) + 86400)
  redis.call('DEL', outcomes)
  if endpoint ~= '' then
    redis.call('HSET', endpoints, endpoint, label)
    redis.call('EXPIRE', endpoints, math.ceil(tonumber(open_max_s)) + 86400)
  end
  return 'open'
end

local was = hash(state_of, 'state', 'cause', 'open_s')
if was.state == 'half_open' then
  for cause in pairs(fresh) do
    if cause ~= was.cause then
      redis.call('DEL', state_of, outcomes)
      redis.call('HDEL', endpoints, endpoint)
      return 'closed'
    end
  end
  if fresh[was.cause] then
    local seconds = math.min(2 * tonumber(was.open_s), tonumber(open_max_s))
    return open(was.cause, seconds, messages[was.cause])
  end
elseif not was.state then
  for cause in string.gmatch(causes, '[^,]+') do
    local n = counts[cause] or 0
    if n >= tonumber(min_failures) and n >= tonumber(rate) * total then
      return open(cause, tonumber(open_s),
        n .. ' of ' .. total .. ' attempts failed: ' .. (messages[cause] or cause))
    end
  end
end
return ''
