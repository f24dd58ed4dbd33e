-- @include time, hash, numbers, ids, entries, healing, begin/state, begin/run, begin/pace, begin/hold
-- @include begin/choose, begin/charge, begin/lease, begin/named, begin/waits
-- Take the lease of one trajectory, or explain why not. With lanes, it is that of the job which is next in
-- these, whatever job the message names: messages say only that jobs wait.
--
-- @key traj = traj:{id}, leases, delayed, waiting, run = run:{run_id}, paced_runs = paced
-- @key results, unread_bytes = results:bytes, group = group:{group_id}, poison
-- @key sched, running = sched:running
-- @key took = sched:took:{owner}  jobs by `slot`, for calls whose answer was lost
-- @arg id
-- @arg attempt  in the message
-- @arg owner, lease_s
-- @arg nonce  of this delivery: a call repeated because its answer was lost gets the same answer
-- @arg prefix
-- @arg soft_max_groups, soft_max_bytes  of the stream: at this size no new group begins
-- @arg slot  a number that no two calls of this owner have that may be repeated
-- @arg ready  what the owner has at hand of what slots are made of: ' {needs} {needs} ', or ''
-- @arg lanes[]  in which the owner takes jobs; none = the named job alone
-- @answer verdict  run | none | held | paused | paced | over_budget | final | cancelled | surplus | stale_attempt | busy | unknown
-- @answer warning  about the run's budget or ''
-- @answer id  of the job
-- The rest of the answer exists for `run` only:
-- @answer epoch, attempt, deaths, job
-- @answer used_s, attempts  seconds of the total deadline used so far; records of failed attempts
-- @answer policy_version  of the run, or ''
-- @answer queued_at, begun_at  start of its wait ('' = unknown), and start of this lease
-- @answer cancel  reason for which it has to end as cancelled, or ''
-- @answer any_poison  '1' if any item is known to be poison
-- @answer journal  '1' if turns of an earlier attempt are kept
-- @answer booked  epoch up to which the tokens of those turns are booked, or ''
-- @answer handed  token of the hand-over if its agent is done and it waits to be graded, or ''
-- @answer needs  what stands for what its slot is made of, or ''
-- held: the circuit breaker of its lane is open; or its group has not begun and too many results wait
-- for readers; or the rest of the run's budget is reserved for others. The job is delayed and uses no
-- attempt.
-- none: jobs wait, but none of these lanes may begin now: `sched_tick` sends a message when one may.
-- paced: its group has to wait for the run's trainer; the job is set aside in run:{id}:held.
-- over_budget: a budget of its env, team or model has no room; it is set aside in budget-held:{name}.
-- paused: its run is paused; the job is parked in run:{id}:parked until the run is resumed. A job that only has to be
-- graded begins all the same, as one process grades what it runs, and needs nothing of a budget.
-- cancelled: the job was cancelled before, or is now because its run was.
-- A job that has to end as cancelled begins although other reasons would hold it back.
-- After a job that is set aside without a warning, the next one is looked at, a few times.
local refused = wrong_number('attempt', attempt, 0, EXACT, true) or wrong_number('lease, s', lease_s, 0, 1e9)
  or wrong_number('most groups', soft_max_groups, 0, EXACT) or wrong_number('most bytes', soft_max_bytes, 0, EXACT)
if refused then return refused end
local chosen = next_choice()
local job = chosen and chosen.job or job_of(traj)
if not chosen and #lanes > 0 and waits(job) then return {'none', '', id} end
local function begin()
  local verdict = not (chosen and chosen.leaf) and unfit(job)
  if verdict then return {verdict, '', id} end
  local g = chosen and chosen.g or group_facts(group)
  local r = chosen and chosen.r or accounts(run, 'max_running')
  local is_repeated = job.state == 'running'
  local cancel = job.cancel or g.cancel or ''
  g.only_ends = cancel ~= ''
  local deaths = deaths_of(job)  -- before anything is reserved: it may be junk
  local warning = ''
  if not is_repeated then
    if r and r.state ~= 'active' then verdict = turned_away(r, cancel, job) end
    if not verdict and cancel == '' then verdict, warning = held_back(job, g, r) end
    if verdict then
      withdraw(chosen, job)
      if verdict == 'held' then rest(chosen) end
      return {verdict, warning, id}
    end
  end
  local leaf = leaf_of(job, chosen)
  local epoch, begun = lease(is_repeated, job, g, r, marker_of(leaf, chosen))
  if not is_repeated then account(chosen, job, leaf) end
  -- A job that was never handed back has waited since its group was enqueued.
  local queued = job.queued or g.created or ''
  return {'run', warning, id, epoch, tonumber(job.attempt), deaths, job.job, number(job.used, '0'), job.attempts or '',
    number(r and r.policy_version, '', '^%-?%d+$'), number(queued, ''), number(begun, ''), cancel,
    not calm(job.lane) and redis.call('EXISTS', poison) == 1 and '1' or '',
    job.journal and '1' or '', number(job.booked, '', '^%d+$'), job.handed or '', g.needs or ''}
end
-- A job that is set aside does not use up the message: else whoever waits behind a run of many jobs that may not begin
-- would wait until each of them has been met.
local answer
for count = 1, ASIDE do
  answer = without_junk(begin, chosen, job)
  local goes_on = count < ASIDE and chosen and chosen.leaf and IS_ASIDE[answer[1]] and answer[2] == ''
  chosen = goes_on and next_choice()
  if not chosen then break end
  job = chosen.job
end
return answer
