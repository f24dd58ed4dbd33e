-- include: budget
-- include: totals
-- include: numbers
-- The current owner gives a job back: a retry (attempt + 1) or a hand-back (attempt stays).
--
-- KEYS[1] traj:{id}  KEYS[2] leases  KEYS[3] delayed  KEYS[4] run:{id}
-- KEYS[5] totals
-- ARGV[1] id  ARGV[2] owner  ARGV[3] epoch  ARGV[4] added to attempt (0 or 1)
-- ARGV[5] delay, s  ARGV[6] record of the failed attempt (JSON) or ''
-- ARGV[7] seconds of the total deadline that this attempt has used up
-- ARGV[8] what it cost, USD ('' = unknown)  ARGV[9] tokens it used
-- ARGV[10] transcript of the failed attempt (packed, without tab and newline) or ''
-- ARGV[11] most bytes of transcripts of all failed attempts; the newest are kept
-- Returns {ok | stale, a warning about the run's budget or ''}.
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1e6
local refused = refused_number({{'attempts added', ARGV[4], 0, 1, true}, {'delay, s', ARGV[5], 0, 1e9},
  {'seconds used', ARGV[7], 0, 1e9}, {'cost, USD', ARGV[8] == '' and '0' or ARGV[8], 0, 1e9},
  {'tokens', ARGV[9], 0, 1e15, true}, {'bytes of transcripts', ARGV[11], 0, EXACT}})
if refused then return refused end
local f = redis.call('HMGET', KEYS[1], 'state', 'owner', 'epoch')
if f[1] ~= 'running' or f[2] ~= ARGV[2] or f[3] ~= ARGV[3] then return {'stale', ''} end
local facts = ARGV[6] ~= '' and cjson.decode(ARGV[6]) or {}
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('ZADD', KEYS[3], string.format('%.6f', now + tonumber(ARGV[5])), ARGV[1])
redis.call('HSET', KEYS[1], 'state', 'queued', 'owner', '', 'queued', string.format('%.6f', now))
redis.call('HINCRBY', KEYS[1], 'attempt', ARGV[4])
if redis.call('EXISTS', KEYS[4]) == 1 then redis.call('HINCRBY', KEYS[4], 'running', -1) end
redis.call('HINCRBYFLOAT', KEYS[1], 'used', ARGV[7])
if ARGV[6] ~= '' then
  local lines, left = {}, tonumber(ARGV[11])
  for line in string.gmatch(redis.call('HGET', KEYS[1], 'attempts') or '', '[^\n]+') do
    lines[#lines + 1] = line
  end
  lines[#lines + 1] = ARGV[6] .. (ARGV[10] ~= '' and '\t' .. ARGV[10] or '')
  for i = #lines, 1, -1 do
    local tab = string.find(lines[i], '\t', 1, true)
    if tab then
      left = left - (#lines[i] - tab)
      if left < 0 then lines[i] = string.sub(lines[i], 1, tab - 1) end
    end
  end
  redis.call('HSET', KEYS[1], 'attempts', table.concat(lines, '\n'))
  local failure = facts['failure'] or {}
  total(KEYS[5], 1, 'retries', failure['cause'])
end
total_spent(KEYS[5], ARGV[8], ARGV[9])
return {'ok', budget_settle(KEYS[4], KEYS[1], {ARGV[8], ARGV[9]}, now)}
