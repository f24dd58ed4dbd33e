-- @lazy account_late
-- @include goodput, leased
-- A worker publishes what it has measured after its lease was taken back, which was charged as a death. traj:{id} has
-- that as `lost`: epoch, owner, start of the lease and seconds.

-- Have the time be that of the worker's own report, until now, unless it is dead and reports nothing.
local function account_late(job)
  local its_epoch, its_owner, begun, charged = string.match(job.lost, '^(%d+) (%S+) (%S+) ([%d.]+)$')
  local held_s, charged_s = leased_s(begun, now), tonumber(charged or '')
  if its_epoch ~= epoch or its_owner ~= owner or not charged_s or charged_s > held_s or not its_run then return end
  if redis.call('HEXISTS', prefix .. 'life:' .. owner, 'outlived') == 1 then return end
  charge(prefix, run_id, redis.call('TTL', run), 's|death', '-' .. charged, now)
  local sum = its_run['spent:slot_s']
  if type(sum) == 'number' then its_run['spent:slot_s'] = sum + held_s - charged_s end
  job.held_s = held_s
end
