-- What the ledger holds of the trajectory: why this delivery of it does not run, or nil.
local function unfit(job)
  local state = job.state
  if not state then return 'unknown' end
  if state == 'final' or state == 'cancelled' or state == 'surplus' then return state end
  if not (job.job and is_job(id, job.lane, job.attempt, job.epoch)) then return 'unknown' end
  if tonumber(attempt) < tonumber(job.attempt) then return 'stale_attempt' end
  -- An expired lease is busy, too: only the sweep takes a job back, so that deaths count.
  if state == 'running' and job.nonce ~= nonce then return 'busy' end
end
