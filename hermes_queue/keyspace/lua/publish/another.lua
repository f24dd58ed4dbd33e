-- @lazy refill_or_keep, evict_stale
-- @include lives, members, publish/lose
-- Further samples of a group, in place of failed or stale ones.

-- How many replacements of this kind the group has had.
local function had(kind) return whole(redis.call('HGET', group, kind)) or 0 end

-- The same job under the next sample index. Deaths of its predecessor do not count for it.
local function another(job, facts, as, counter)
  if not (job.job and job.lane and job.priority) then return end  -- a producer has changed it
  local fresh = group_id .. '.' .. facts.planned
  local key = prefix .. 'traj:' .. fresh
  local from = floor_of_leftover(key, tonumber(job.floor or '') or 0)
  if from > 0 then redis.call('HSET', key, 'floor', from) end
  redis.call('HSET', key, 'state', 'queued', 'attempt', 1, 'epoch', from,
    'lane', (string.gsub(string.gsub(job.lane, '%.quarantine%-?%d*$', ''), '%.verify$', '')), 'priority', job.priority, 'job', job.job,
    'queued', stamp(now))
  healing('ZADD', delayed, stamp(now), fresh)
  facts.planned = facts.planned + 1
  redis.call('HSET', group, as, had(as) + 1, 'planned', facts.planned)
  count('total')
  count(counter)
end

-- Replace a failure of infrastructure, or keep its job for `run retry`.
local function refill_or_keep(job, facts, failure)
  local wanted = facts.planned - facts.failed < facts.size
  if refillable == '1' and wanted and had('refills') < (facts.policy.max_refills or 0) then
    another(job, facts, 'refills', 'refilled')
  elseif failure.keep and its_run then
    local failed = prefix .. 'failed:' .. run_id
    redis.call('HSET', failed, id, cjson.encode({failure.cause, failure.reason, job.job}))
    redis.call('EXPIRE', failed, math.max(1, redis.call('TTL', run)))
  end
end

-- Members whose policy is now too old, this record included, leave the open group: their bodies
-- expire, and new samples are made as the policy requires. The policy's age is bounded. Returns whether this record
-- left, too.
local function evict_stale(job, facts, own_name)
  if is_measured and policy_oldest == '' then count('policy_unknown') end
  local left = false
  if not facts.evicts_stale then return left end
  for index = 0, facts.planned - 1 do
    local raw = redis.call('HGET', group, 'm:' .. index)
    local m = raw and member_of(raw)
    if m and is_too_old(facts, m[4]) then
      redis.call('HDEL', group, 'm:' .. index, 's:' .. index)
      redis.call('HSET', group, 'z:' .. index, raw)
      redis.call('EXPIRE', prefix .. 'body:' .. m[1], finished_ttl_s)
      redis.call('DECRBY', unread_bytes, m[3])
      facts.measured, facts.failed = facts.measured - 1, facts.failed + 1
      redis.call('HSET', group, 'measured', facts.measured, 'failed', facts.failed)
      count('finished', -1)
      count('stale')
      lose('stale', 1, m[6])
      left = left or m[1] == own_name
      if facts.policy.on_stale == 'requeue' and facts.planned - facts.failed < facts.size
        and had('requeues') < (facts.policy.max_requeues or 0) then
        another(job, facts, 'requeues', 'stale_requeued')
      end
    end
  end
  return left
end
