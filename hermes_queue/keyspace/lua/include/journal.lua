-- The journal of a trajectory: traj:{id} has the field `journal` once there is one, the epoch that added to it
-- last; `noted`, what its turns cost then (JSON); `snapshot`, the newest copy of its slot's files; and `booked`,
-- the epoch up to which its tokens are.
--
-- Work that was handed over to be graded elsewhere: traj:{id} has the field `handed`, the token of the hand-over in
-- handover:{id}; and `snapshot`, the copy of the slot's files that goes with it.
local JOURNAL = {'journal', 'noted', 'snapshot', 'booked'}

-- Delete what was handed over. `job`: the field `handed`; nothing is done without.
local function drop_handover(prefix, key, id, job)
  if not job.handed then return end
  redis.call('DEL', prefix .. 'handover:' .. id)
  redis.call('ZREM', prefix .. 'handed', id)
  redis.call('HDEL', key, 'handed', 'snapshot')
end

-- Delete the journal. `job`: the field `journal`; nothing is done without.
local function drop_journal(prefix, key, id, job)
  if not job.journal then return end
  redis.call('DEL', prefix .. 'journal:' .. id)
  redis.call('HDEL', key, unpack(JOURNAL))
end
