-- Make a dead worker's sandbox another worker's.
--
-- KEYS[1] sandboxes (ids by the end of their lease)  KEYS[2] reaper:{backend}:suspects
-- ARGV[1] prefix  ARGV[2] sandbox id  ARGV[3] worker that had it  ARGV[4] worker that wants it
-- ARGV[5] its new facts (JSON)  ARGV[6] lease, s  ARGV[7] seconds that the record outlives it
-- Returns 1 when it is the caller's now, else 0: it is a third one's, or condemned or gone.
-- That the worker that had it is dead is for the caller to know. Safe to repeat.
local record = ARGV[1] .. 'sandbox:' .. ARGV[2]
local raw = redis.call('GET', record)
if not raw then return 0 end
local worker = (cjson.decode(raw)['labels'] or {})['worker']
if worker ~= ARGV[3] and worker ~= ARGV[4] then return 0 end
local t = redis.call('TIME')
local expires = tonumber(t[1]) + tonumber(t[2]) / 1e6 + tonumber(ARGV[6])
redis.call('ZADD', KEYS[1], string.format('%.6f', expires), ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[7])
redis.call('SET', record, ARGV[5], 'EX', ARGV[7])
redis.call('ZREM', KEYS[2], ARGV[2])
return 1
