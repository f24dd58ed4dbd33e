-- Claim jobs of one run: each trajectory id is accepted once, ever.
--
-- KEYS[1] run:{id}           hash: counters
-- KEYS[2] run:{id}:claimed   set of "<group digest>.<sample>" enqueued so far
-- KEYS[3] delayed            zset: until the producer confirms that it has published
--                            the messages, the mover may publish them in its place
-- KEYS[4] runs               zset: run ids by the time of their last enqueue
-- ARGV[1] key prefix  ARGV[2] seconds until the mover takes over  ARGV[3] TTL of the run, s
-- ARGV[4] run configuration (JSON, equal when the text is), stored by the first call; '' = of
--         no matter to the caller
-- ARGV[5] TTL of finished state, s
-- ARGV[6...] per job: claim, trajectory id, group id, group size, env, instance id,
--            lane, priority, job (JSON), samples planned for the group, its policy (JSON)
-- A job whose group was closed without it counts as surplus and is not accepted; so does one whose
-- group is gone though another sample of it was claimed: it was closed so long ago.
-- Returns {their claim for `published`, the 1-based positions of the accepted jobs ...}, or the
-- error GROUPSIZE when a group exists with another size, CONFIG and the stored configuration when that is another one,
-- CANCELLED when the run is: nothing of the call is applied then.
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1e6
local stamp = string.format('%.6f', now)
local prefix, due = ARGV[1], string.format('%.6f', now + tonumber(ARGV[2]))
for i = 6, #ARGV, 11 do
  local size = redis.call('HGET', prefix .. 'group:' .. ARGV[i + 2], 'size')
  if size and size ~= ARGV[i + 3] then
    return redis.error_reply('GROUPSIZE ' .. ARGV[i + 2] .. ' has size ' .. size)
  end
end
local run = redis.call('HMGET', KEYS[1], 'state', 'config')
if run[1] == 'cancelled' then return redis.error_reply('CANCELLED') end
if ARGV[4] ~= '' and run[2] and run[2] ~= ARGV[4] then return redis.error_reply('CONFIG ' .. run[2]) end
redis.call('HSETNX', KEYS[1], 'created', stamp)
if ARGV[4] ~= '' then redis.call('HSETNX', KEYS[1], 'config', ARGV[4]) end
redis.call('HSETNX', KEYS[1], 'state', 'active')
local function closed(group, claim, planned)
  if redis.call('EXISTS', group) == 1 then return redis.call('HEXISTS', group, 'closed') == 1 end
  local digest, own = string.match(claim, '^(.*)%.(%d+)$')
  local others = {}
  for index = 0, tonumber(planned) - 1 do
    if index ~= tonumber(own) then others[#others + 1] = digest .. '.' .. index end
  end
  if #others == 0 then return false end
  for _, known in ipairs(redis.call('SMISMEMBER', KEYS[2], unpack(others))) do
    if known == 1 then return true end
  end
  return false
end
local accepted, surplus = {due}, 0
local position = 0
for i = 6, #ARGV, 11 do
  position = position + 1
  if redis.call('SADD', KEYS[2], ARGV[i]) == 1 then
    local id, group = ARGV[i + 1], prefix .. 'group:' .. ARGV[i + 2]
    if closed(group, ARGV[i], ARGV[i + 9]) then
      redis.call('HSET', prefix .. 'traj:' .. id, 'state', 'surplus')
      redis.call('EXPIRE', prefix .. 'traj:' .. id, ARGV[5])
      surplus = surplus + 1
    else
      redis.call('HSET', prefix .. 'traj:' .. id, 'state', 'queued', 'attempt', 1, 'epoch', 0,
        'lane', ARGV[i + 6], 'priority', ARGV[i + 7], 'job', ARGV[i + 8])
      redis.call('HSETNX', group, 'created', stamp)
      redis.call('HSETNX', group, 'size', ARGV[i + 3])
      redis.call('HSETNX', group, 'env', ARGV[i + 4])
      redis.call('HSETNX', group, 'instance_id', ARGV[i + 5])
      redis.call('HSETNX', group, 'planned', ARGV[i + 9])
      redis.call('HSETNX', group, 'policy', ARGV[i + 10])
      redis.call('ZADD', KEYS[3], due, id)
      accepted[#accepted + 1] = position
    end
  end
end
redis.call('HINCRBY', KEYS[1], 'total', #accepted - 1 + surplus)
if surplus > 0 then redis.call('HINCRBY', KEYS[1], 'surplus', surplus) end
redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', string.format('%.6f', now - tonumber(ARGV[3])))
redis.call('ZADD', KEYS[4], stamp, string.sub(KEYS[1], #prefix + 5))
redis.call('EXPIRE', KEYS[4], ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[3])
redis.call('EXPIRE', KEYS[2], ARGV[3])
return accepted
