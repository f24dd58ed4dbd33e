-- The state of a job that may begin, or not.

-- Scores of jobs that one call sets aside, in the order in which it meets them.
local turns = 0
local function its_turn()
  turns = turns + 1
  return stamp(now + (turns - 1) * 1e-6)
end

-- The job's fields that matter here. Most of them only one that has begun before can have.
local function job_of(key)
  local job = fields_of(key, 'state', 'attempt', 'job', 'lane', 'epoch', 'cancel', 'queued', 'begun', 'leaf')
  if job.state and (job.begun or job.epoch ~= '0') then
    local more = fields_of(key, 'nonce', 'quarantine_deaths', 'unseen_deaths', 'used', 'attempts', 'journal', 'booked',
      'handed')
    for name, value in pairs(more) do job[name] = value end
  end
  return job
end

-- A number in a field, as text; `otherwise` if it is none that a worker could read.
local function number(text, otherwise, form)
  return text and #text < 40 and string.find(text, form or '^%-?%d+%.?%d*$') and text or otherwise
end

-- A death that a living parent saw is the job's own fault; a death together with the parent may have other causes, so
-- it counts for a third.
local function deaths_of(job)
  return tonumber(job.quarantine_deaths or '0') + math.floor(tonumber(job.unseen_deaths or '0') / 3)
end

-- The verdict on a delivery that must not run, from the state of its trajectory; else nil.
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

-- `needs` stands for what the slots of its jobs are made of; nil if it is none.
local function group_facts(key)
  local g = hash(key, 'cancel', 'begun', 'created', 'needs')
  if g.needs and not string.find(g.needs, '^%x%x%x%x%x%x%x%x$') then g.needs = nil end
  return g
end

-- Whether the owner has at hand what the group's slots are made of.
local function is_ready(g) return string.find(ready, ' ' .. g.needs .. ' ', 1, true) end

-- Whether the job of a way would be the first of its group.
local function opens(way) return not (way.g.begun or way.g.cancel or way.job.cancel) end

-- Whether another group may begin in place of that of the next job: if this one needs what the owner has not, and no
-- trainer paces the run, whose groups begin in their order.
local function looks_further(way)
  return ready ~= '' and way.g.needs and not is_ready(way.g) and opens(way) and not (way.r and way.r.max_ahead)
end

-- Whether a job that was chosen still waits in its leaf, and is one. Its group is read along.
local function is_right(way)
  local job = job_of(prefix .. 'traj:' .. way.id)
  way.job, way.group_id = job, group_of(way.id)
  if job.state ~= 'queued' or job.leaf ~= way.leaf or not job.job then return false end
  if not is_job(way.id, job.lane, job.attempt, job.epoch) or run_of(way.id) ~= way.run_id then return false end
  local whole, g = pcall(group_facts, prefix .. 'group:' .. way.group_id)
  way.g = g
  return whole
end
