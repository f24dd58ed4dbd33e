-- include: numbers
-- Count the outcomes of attempts on one lane; open or close its circuit breaker.
--
-- KEYS[1] lane:{lane}           hash: state (open | half_open; closed when absent), cause,
--                               message, opened, until, open_s, probe
-- KEYS[2] lane:{lane}:outcomes  hash: "<bucket>:<cause>" -> attempts; cause '' = no failure
-- ARGV[1] window, s  ARGV[2] failure rate that opens  ARGV[3] least failures that open
-- ARGV[4] seconds the breaker stays open the first time  ARGV[5] longest, s
-- ARGV[6] causes that count, comma-separated
-- ARGV[7...] triples: cause, attempts, an example of its message
-- The window is kept in six buckets. While open nothing is begun; after that one probe at a
-- time is: an attempt that does not fail of the cause closes the breaker, one that does opens
-- it for twice as long. Returns the state that was entered (open | closed), or ''.
local checked = {{'window, s', ARGV[1], 1e-3, 1e9}, {'failure rate', ARGV[2], 0, 1}, {'least failures', ARGV[3], 0, EXACT},
  {'seconds open', ARGV[4], 0, 1e9}, {'longest, s', ARGV[5], 0, 1e9}}
for i = 7, #ARGV, 3 do checked[#checked + 1] = {'attempts', ARGV[i + 1], 0, 1e15, true} end
local refused = refused_number(checked)
if refused then return refused end
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1e6
local width = tonumber(ARGV[1]) / 6
local bucket = math.floor(now / width)
local counts = {}
local fresh = {}
local messages = {}
for i = 7, #ARGV, 3 do
  redis.call('HINCRBY', KEYS[2], bucket .. ':' .. ARGV[i], ARGV[i + 1])
  fresh[ARGV[i]] = tonumber(ARGV[i + 1])
  messages[ARGV[i]] = ARGV[i + 2]
end
redis.call('EXPIRE', KEYS[2], math.ceil(2 * tonumber(ARGV[1])))
local flat = redis.call('HGETALL', KEYS[2])
local total = 0
for i = 1, #flat, 2 do
  local at, cause = string.match(flat[i], '^(%d+):(.*)$')
  if tonumber(at) <= bucket - 6 then
    redis.call('HDEL', KEYS[2], flat[i])
  else
    counts[cause] = (counts[cause] or 0) + tonumber(flat[i + 1])
    total = total + tonumber(flat[i + 1])
  end
end

local function open(cause, seconds, message)
  redis.call('HSET', KEYS[1], 'state', 'open', 'cause', cause, 'message', message,
    'until', string.format('%.6f', now + seconds), 'open_s', tostring(seconds))
  redis.call('HSETNX', KEYS[1], 'opened', string.format('%.6f', now))
  redis.call('EXPIRE', KEYS[1], math.ceil(seconds) + 86400)
  redis.call('DEL', KEYS[2])
  return 'open'
end

local lane = redis.call('HMGET', KEYS[1], 'state', 'cause', 'open_s')
if lane[1] == 'half_open' then
  for cause in pairs(fresh) do
    if cause ~= lane[2] then
      redis.call('DEL', KEYS[1], KEYS[2])
      return 'closed'
    end
  end
  if fresh[lane[2]] then
    local seconds = math.min(2 * tonumber(lane[3]), tonumber(ARGV[5]))
    return open(lane[2], seconds, messages[lane[2]])
  end
elseif not lane[1] then
  for cause in string.gmatch(ARGV[6], '[^,]+') do
    local n = counts[cause] or 0
    if n >= tonumber(ARGV[3]) and n >= tonumber(ARGV[2]) * total then
      return open(cause, tonumber(ARGV[4]),
        n .. ' of ' .. total .. ' attempts failed: ' .. (messages[cause] or cause))
    end
  end
end
return ''
