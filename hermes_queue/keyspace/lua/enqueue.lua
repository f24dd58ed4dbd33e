-- @include time, hash, numbers, healing, lives, bulk, sched/tree, sched/put, enqueue/claimed, enqueue/misfits, enqueue/wait
-- Claim jobs of one run: each trajectory id is accepted only once.
--
-- @key run = run:{run_id}  counters
-- @key claimed = run:{run_id}:claimed  "<group digest>.<sample>" of all jobs enqueued so far
-- @key delayed  until the producer confirms that it has published the messages, the mover may
--      publish them in its place
-- @key runs  run ids by the time of their last enqueue
-- @key purged = purged:{run_id}  number of purges of this run, see include/lives.lua
-- @arg prefix, run_id
-- @arg claim_s  until the mover takes over
-- @arg run_ttl_s
-- @arg config  of the run (JSON, compared as text), stored by the first call; '' = do not compare
-- @arg finished_ttl_s
-- @arg team, weight, max_running  of the run, '' = as it is: the team is that of the first call
-- @arg bodies[]  jobs (JSON) without what tells samples apart: those of a group share one
-- @arg groups[id, size, planned, policy, env, instance_id, needs]  planned: samples; policy: JSON;
--      needs: 8 hex digits that stand for what its slots are made of, or ''
-- @arg jobs[id, place, body, lane, priority]  place of its group in `groups`, of its body in `bodies`
-- @answer claim, positions  for `published`; the 1-based positions of the accepted jobs
-- A job whose group was closed without it counts as surplus and is not accepted. The same holds if the
-- group is gone although another sample of it was claimed: it was closed long ago.
-- Remains of a purged life of a trajectory or its group are deleted.
-- Errors, after which nothing of the call is applied: NUMBER; IDS if an id is not
-- <run>.<digest>.<sample>; SAMPLE if the group has no such sample; GROUPSIZE, GROUPPLANNED and
-- GROUPPOLICY if the group was begun with another size, number of samples or policy (the group's id and
-- its value follow); CONFIG, followed by the stored configuration, if that differs; CANCELLED if the
-- run is cancelled.
local refused = refused_number({{'claim, s', claim_s, 0, 1e9}, {'TTL of the run, s', run_ttl_s, 1, 1e9, true},
  {'TTL of finished state, s', finished_ttl_s, 1, 1e9, true}, {'weight', weight == '' and '1' or weight, 1e-3, 1e6},
  {'most running', max_running == '' and '1' or max_running, 1, EXACT, true}})
if refused then return refused end
refused = first_misfit()
if refused then return refused end
local known = hash(run, 'state', 'config', 'team')
if known.state == 'cancelled' then return redis.error_reply('CANCELLED') end
if config ~= '' and known.config and known.config ~= config then return redis.error_reply('CONFIG ' .. known.config) end
redis.call('HSETNX', run, 'created', stamp(now))
if config ~= '' then redis.call('HSETNX', run, 'config', config) end
redis.call('HSETNX', run, 'state', 'active')
share(known)
local floor = floor_of_life(purged)
local due = stamp(now + tonumber(claim_s))
local accepted, ids, surplus = {}, {}, 0
local function claim_all()
  for position, job in ipairs(jobs) do
    if redis.call('SADD', claimed, job.claim) == 1 then
      local traj, group = prefix .. 'traj:' .. job.id, known_group(job.group)
      local from = floor_of_leftover(traj, floor)
      if group.is_over then
        redis.call('HSET', traj, 'state', 'surplus')
        redis.call('EXPIRE', traj, finished_ttl_s)
        surplus = surplus + 1
      else
        if not group.is_open then begin_group(job.group) end
        redis.call('HSET', traj, 'state', 'queued', 'attempt', 1, 'epoch', from,
          'lane', job.lane, 'priority', job.priority, 'job', bodies[tonumber(job.body)], 'leaf', leaf_for(job, position))
        if from > 0 then redis.call('HSET', traj, 'floor', from) end
        accepted[#accepted + 1], ids[#ids + 1] = position, job.id
      end
    end
  end
end
-- A key that is of another type ends it half-way. What is claimed by then must run all the same.
local whole, fault = pcall(claim_all)
add_all(delayed, due, ids)
pcall(wait_all)
redis.pcall('HINCRBY', run, 'total', #accepted + surplus)
if surplus > 0 then redis.pcall('HINCRBY', run, 'surplus', surplus) end
healing('ZREMRANGEBYSCORE', runs, '-inf', stamp(now - tonumber(run_ttl_s)))
redis.call('ZADD', runs, stamp(now), run_id)
for _, key in ipairs({runs, run, claimed}) do redis.call('EXPIRE', key, run_ttl_s) end
if floor > 0 then redis.call('EXPIRE', purged, run_ttl_s) end
if not whole then return type(fault) == 'table' and fault or redis.error_reply(tostring(fault)) end
return {due, accepted}
