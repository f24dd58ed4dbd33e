-- What the ledger holds of the trajectory: why this delivery of it does not run, or nil.
local function unfit(job)
  local state = job.state
  if not state then return 'unknown' end
  if state == 'final' or state == 'cancelled' or state == 'surplus' then return state end
  if not (job.job and is_job(id, job.lane, job.attempt, job.epoch)) then return 'unknown' end
  if tonumber(attempt) < tonumber(job.attempt) then return 'stale_attempt' end
  -- A job with an expired lease is busy, too. If a second delivery could take it over here, before
  -- the sweep, nobody would count the death of its owner, and a job that kills workers would go on.
  if state == 'running' and job.nonce ~= nonce then return 'busy' end
end
-- The verdict on a delivery that must not run, from the state of its trajectory; else nil.
