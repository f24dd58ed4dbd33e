-- include: numbers
-- include: lives
-- Claim jobs of one run: each trajectory id is accepted once, ever.
--
-- KEYS[1] run:{id}           hash: counters
-- KEYS[2] run:{id}:claimed   set of "<group digest>.<sample>" enqueued so far
-- KEYS[3] delayed            zset: until the producer confirms that it has published
--                            the messages, the mover may publish them in its place
-- KEYS[4] runs               zset: run ids by the time of their last enqueue
-- KEYS[5] purged:{id}        how often this run was purged, see include/lives.lua
-- ARGV[1] key prefix  ARGV[2] seconds until the mover takes over  ARGV[3] TTL of the run, s
-- ARGV[4] run configuration (JSON, equal when the text is), stored by the first call; '' = of
--         no matter to the caller
-- ARGV[5] TTL of finished state, s
-- ARGV[6...] per job: claim, trajectory id, group id, group size, env, instance id,
--            lane, priority, job (JSON), samples planned for the group, its policy (JSON)
-- A job whose group was closed without it counts as surplus and is not accepted; so does one whose
-- group is gone though another sample of it was claimed: it was closed so long ago.
-- What a purge has left of a trajectory or of its group is no part of this life and is deleted.
-- Returns {their claim for `published`, the 1-based positions of the accepted jobs ...}, or an error:
-- NUMBER, IDS when an id is not <run>.<digest>.<sample>, SAMPLE when the group has no such sample,
-- GROUPSIZE, GROUPPLANNED and GROUPPOLICY when the group was begun with another size, other samples
-- planned or another policy (which follows, after the group's id), CONFIG and the stored configuration
-- when that is another one, CANCELLED when the run is: nothing of the call is applied then.
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1e6
local stamp = string.format('%.6f', now)
local refused = refused_number({{'claim, s', ARGV[2], 0, 1e9}, {'TTL of the run, s', ARGV[3], 1, 1e9, true},
  {'TTL of finished state, s', ARGV[5], 1, 1e9, true}})
if refused then return refused end
local prefix, due = ARGV[1], string.format('%.6f', now + tonumber(ARGV[2]))
local run_id = string.sub(KEYS[1], #prefix + 5)
-- Whether any sample of a group but `own` was claimed in this life.
local function any_claimed(digest, planned, own)
  local claims = {}
  for index = 0, tonumber(planned) - 1 do
    if index ~= tonumber(own) then claims[#claims + 1] = digest .. '.' .. index end
  end
  if #claims == 0 then return false end
  for _, known in ipairs(redis.call('SMISMEMBER', KEYS[2], unpack(claims))) do
    if known == 1 then return true end
  end
  return false
end
local begun = {}
local function other_group(i)
  local id = ARGV[i + 2]
  local digest, index = string.match(ARGV[i], '^([^.]+)%.(%d+)$')
  if not digest or id ~= run_id .. '.' .. digest or ARGV[i + 1] ~= id .. '.' .. index then
    return redis.error_reply('IDS ' .. ARGV[i + 1] .. ' is no <run>.<digest>.<sample> of run ' .. run_id)
  end
  local wrong = refused_number({{'group size', ARGV[i + 3], 1, 4096, true}, {'priority', ARGV[i + 7], 0, 9, true},
    {'samples planned', ARGV[i + 9], tonumber(ARGV[i + 3]) or 1, 4096, true}})
  if wrong then return wrong end
  if tonumber(index) >= tonumber(ARGV[i + 9]) then
    return redis.error_reply('SAMPLE ' .. ARGV[i + 1] .. ' is beyond the ' .. ARGV[i + 9] .. ' of its group')
  end
  local g = begun[id]
  if not g then
    g = redis.call('HMGET', prefix .. 'group:' .. id, 'size', 'planned', 'policy', 'refills', 'requeues', 'closed')
    if g[2] then g[2] = string.format('%.0f', g[2] - (g[4] or 0) - (g[5] or 0)) end
    if not g[1] or g[6] and not any_claimed(digest, ARGV[i + 9]) then g = {ARGV[i + 3], ARGV[i + 9], ARGV[i + 10]} end
    begun[id] = g
  end
  for n, each in ipairs({{'SIZE', ARGV[i + 3]}, {'PLANNED', ARGV[i + 9]}, {'POLICY', ARGV[i + 10]}}) do
    if g[n] and g[n] ~= each[2] then
      return redis.error_reply('GROUP' .. each[1] .. ' ' .. id .. ' ' .. g[n])
    end
  end
end
for i = 6, #ARGV, 11 do
  refused = other_group(i)
  if refused then return refused end
end
local run = redis.call('HMGET', KEYS[1], 'state', 'config')
if run[1] == 'cancelled' then return redis.error_reply('CANCELLED') end
if ARGV[4] ~= '' and run[2] and run[2] ~= ARGV[4] then return redis.error_reply('CONFIG ' .. run[2]) end
redis.call('HSETNX', KEYS[1], 'created', stamp)
if ARGV[4] ~= '' then redis.call('HSETNX', KEYS[1], 'config', ARGV[4]) end
redis.call('HSETNX', KEYS[1], 'state', 'active')
local floor = floor_of_life(KEYS[5])
-- Whether its group was closed without it. One that is closed, of which nothing is claimed, is of a former life.
local function closed(group, claim, planned)
  local state = redis.call('HMGET', group, 'size', 'closed')
  if state[1] and not state[2] then return false end
  local digest, own = string.match(claim, '^(.*)%.(%d+)$')
  if any_claimed(digest, planned, own) then return true end
  forget_hash(group)  -- of a former life
  return false
end
local accepted, surplus = {due}, 0
local position = 0
for i = 6, #ARGV, 11 do
  position = position + 1
  if redis.call('SADD', KEYS[2], ARGV[i]) == 1 then
    local id, group = ARGV[i + 1], prefix .. 'group:' .. ARGV[i + 2]
    local from = floor_of_leftover(prefix .. 'traj:' .. id, floor)
    if closed(group, ARGV[i], ARGV[i + 9]) then
      redis.call('HSET', prefix .. 'traj:' .. id, 'state', 'surplus')
      redis.call('EXPIRE', prefix .. 'traj:' .. id, ARGV[5])
      surplus = surplus + 1
    else
      redis.call('HSET', prefix .. 'traj:' .. id, 'state', 'queued', 'attempt', 1, 'epoch', from,
        'lane', ARGV[i + 6], 'priority', ARGV[i + 7], 'job', ARGV[i + 8])
      if from > 0 then redis.call('HSET', prefix .. 'traj:' .. id, 'floor', from) end
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
redis.call('ZADD', KEYS[4], stamp, run_id)
redis.call('EXPIRE', KEYS[4], ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[3])
redis.call('EXPIRE', KEYS[2], ARGV[3])
if floor > 0 then redis.call('EXPIRE', KEYS[5], ARGV[3]) end
return accepted
