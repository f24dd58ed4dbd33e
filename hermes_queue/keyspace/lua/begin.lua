-- @include time, hash, numbers, entries, begin/state, begin/run, begin/hold, begin/lease
-- Take the lease of one trajectory, or say why not.
--
-- @key traj = traj:{id}, leases, delayed, waiting, run = run:{run_id}, parked = run:{run_id}:parked
-- @key results, unread_bytes = results:bytes, group = group:{group_id}, poison
-- @arg id
-- @arg attempt  in the message
-- @arg owner, lease_s
-- @arg nonce  of this delivery: repeating a call whose answer was lost answers the same
-- @arg prefix
-- @arg soft_max_groups, soft_max_bytes  in the stream: from there on no new group begins
-- @answer verdict  run | held | paused | final | cancelled | surplus | stale_attempt | busy | unknown
-- @answer warning  about the run's budget or ''
-- The rest of the answer is of `run` alone:
-- @answer epoch, attempt, deaths, job
-- @answer used_s, attempts  of the total deadline; records of failed attempts
-- @answer policy_version  of the run, or ''
-- @answer queued_at, begun_at  since when it waited ('' when nobody knows), and when this lease was taken
-- @answer cancel  why it shall end as cancelled, or ''
-- @answer any_poison  '1' when some item is known to be poison
-- held: the circuit breaker of its lane is open, or too many results wait for their readers
-- and its group has not begun, or what is left of the run's budget is set aside for others;
-- the job is delayed and uses no attempt.
-- paused: the run is; the job is parked in run:{id}:parked until it goes on.
-- cancelled: it was, or its run is and now the job is too.
-- One that is to end as cancelled begins whatever else would hold it back.
local refused = refused_number({{'attempt', attempt, 0, EXACT, true}, {'lease, s', lease_s, 0, 1e9},
  {'most groups', soft_max_groups, 0, EXACT}, {'most bytes', soft_max_bytes, 0, EXACT}})
if refused then return refused end
local job = fields_of(traj, 'state', 'attempt', 'job', 'nonce', 'lane', 'epoch')
local verdict = unfit(job)
if verdict then return {verdict, ''} end
local is_repeated = job.state == 'running'
local cancel = redis.call('HGET', traj, 'cancel') or redis.call('HGET', group, 'cancel') or ''
local warning = ''
if not is_repeated then
  verdict = turned_away(cancel)
  if not verdict and cancel == '' then verdict, warning = held_back(job) end
  if verdict then return {verdict, warning} end
end
local epoch = lease(is_repeated)
local known = hash(traj, 'quarantine_deaths', 'unseen_deaths', 'used', 'attempts', 'queued', 'begun')
-- One that a living parent saw is the job's own; of those with the parent there may be other causes.
local deaths = tonumber(known.quarantine_deaths or '0') + math.floor(tonumber(known.unseen_deaths or '0') / 3)
-- A job that was never given back has waited since its group was enqueued.
local queued = known.queued or redis.call('HGET', group, 'created') or ''
return {'run', warning, epoch, tonumber(job.attempt), deaths, job.job, known.used or '0', known.attempts or '',
  redis.call('HGET', run, 'policy_version') or '', queued, known.begun or '', cancel,
  redis.call('EXISTS', poison) == 1 and '1' or ''}
