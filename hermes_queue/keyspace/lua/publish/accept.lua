-- Whether a record counts.

-- The verdict on a record that no group waits for, or whose object may be gone; nil if its group decides.
local function verdict_without_group(job)
  local state = job.state
  if not state then return redis.call('EXISTS', prefix .. 'purged:' .. run_id) == 1 and 'cancelled' or 'unknown' end
  if tonumber(epoch) <= (tonumber(job.floor or '') or 0) then return 'stale' end  -- of a former life
  local has_ended = state == 'final' or state == 'cancelled'
  if object ~= '' and not has_ended and not redis.call('ZSCORE', objects, object) then return 'unstored' end
  if state == 'surplus' then
    local name = prefix .. 'body:' .. body_name(id, job.floor)
    put_body(name)
    redis.call('EXPIRE', name, finished_ttl_s)
    redis.call('HSET', traj, 'state', 'final')
    return 'surplus'
  end
  return has_ended and state or nil
end

-- `stale` or `full`, else nil. A measured record is accepted from any attempt. A failure is accepted only
-- from the current owner and epoch: from an older attempt it would end a trajectory whose newer attempt
-- may yet succeed. The same holds for a sample whose policy is too old, because the current attempt has a
-- newer policy.
local function refusal(job, facts)
  local mine = job.owner == owner and job.epoch == epoch
  if not mine and (not is_measured or facts.evicts_stale and is_too_old(facts, policy_oldest)) then return 'stale' end
  -- With nothing unread no reader could make room: all of it is taken by unfinished groups.
  local unread = redis.call('XLEN', results)
  if unread >= tonumber(hard_max_groups)
    or unread > 0 and tonumber(redis.call('GET', unread_bytes) or '0') >= tonumber(hard_max_bytes) then
    return 'full'
  end
end
