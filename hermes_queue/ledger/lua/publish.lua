-- Make one trajectory final and, with the last member, publish its group. Exactly once.
--
-- KEYS[1] traj:{id}  KEYS[2] leases  KEYS[3] delayed  KEYS[4] group:{id}  KEYS[5] body:{id}
-- KEYS[6] results (stream)  KEYS[7] run:{id}  KEYS[8] waiting
-- ARGV[1] id  ARGV[2] owner  ARGV[3] epoch  ARGV[4] score, or '' when not measured
-- ARGV[5] body  ARGV[6] sample index  ARGV[7] TTL of finished state, s
-- ARGV[8] schema version  ARGV[9] codec  ARGV[10] group id  ARGV[11] run id
-- A measured record is accepted from any attempt while the trajectory is open; a failure
-- only from the current owner and epoch, because a newer attempt may yet succeed.
-- Returns ok | group | final | cancelled | stale | unknown.
local f = redis.call('HMGET', KEYS[1], 'state', 'owner', 'epoch')
local state = f[1]
if not state then return 'unknown' end
if state == 'final' or state == 'cancelled' then return state end
if ARGV[4] == '' and (f[2] ~= ARGV[2] or f[3] ~= ARGV[3]) then return 'stale' end

local t = redis.call('TIME')
local stamp = string.format('%.6f', tonumber(t[1]) + tonumber(t[2]) / 1e6)
redis.call('SET', KEYS[5], ARGV[5])
redis.call('HDEL', KEYS[1], 'job', 'attempts')
redis.call('HSET', KEYS[1], 'state', 'final')
redis.call('EXPIRE', KEYS[1], ARGV[7])
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('ZREM', KEYS[8], ARGV[1])
local counted = redis.call('EXISTS', KEYS[7]) == 1
if counted then
  redis.call('HINCRBY', KEYS[7], ARGV[4] == '' and 'failed' or 'finished', 1)
  if state == 'running' then redis.call('HINCRBY', KEYS[7], 'running', -1) end
end

redis.call('HSET', KEYS[4], 'm:' .. ARGV[6],
  cjson.encode({ARGV[1], ARGV[4], #ARGV[5]}))
local done = redis.call('HINCRBY', KEYS[4], 'done', 1)
local size = tonumber(redis.call('HGET', KEYS[4], 'size') or '1')
if done ~= size then return 'ok' end

local group = {}
local flat = redis.call('HGETALL', KEYS[4])
for i = 1, #flat, 2 do group[flat[i]] = flat[i + 1] end
local members, scores, bytes, sum = {}, {}, 0, 0
for name, value in pairs(group) do
  local index = string.match(name, '^m:(%d+)$')
  if index then
    local m = cjson.decode(value)
    members[#members + 1] = {tonumber(index), m[1]}
    bytes = bytes + m[3]
    if m[2] ~= '' then
      scores[#scores + 1] = tonumber(m[2])
      sum = sum + tonumber(m[2])
    end
  end
end
table.sort(members, function(a, b) return a[1] < b[1] end)
local ids = {}
for _, m in ipairs(members) do ids[#ids + 1] = m[2] end
local mean, std = '', ''
if #scores > 0 then
  local m, square = sum / #scores, 0
  for _, s in ipairs(scores) do square = square + (s - m) * (s - m) end
  mean = string.format('%.17g', m)
  std = string.format('%.17g', math.sqrt(square / #scores))
end
redis.call('XADD', KEYS[6], '*', 'schema', ARGV[8], 'codec', ARGV[9], 'run_id', ARGV[11],
  'group_id', ARGV[10], 'env', group['env'] or '', 'instance_id', group['instance_id'] or '',
  'size', tostring(size), 'complete', #scores == size and '1' or '0', 'mean', mean, 'std', std,
  'bytes', tostring(bytes), 'created', group['created'] or stamp, 'finished', stamp,
  'members', cjson.encode(ids))
if counted then redis.call('HINCRBY', KEYS[7], 'groups', 1) end
redis.call('EXPIRE', KEYS[4], ARGV[7])
return 'group'
