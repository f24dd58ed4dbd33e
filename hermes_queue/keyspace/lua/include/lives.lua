-- The lives of a run: a run that is enqueued after a purge begins a new life, with the same ids.
--
-- purged:{id} counts the purges of a run. The epochs of a life are above those of all earlier lives.
-- Otherwise a claim, or a record that a worker still keeps from before the purge, would count in the
-- new life. traj:{id} holds the lowest epoch of its life as `floor`, unless that is 0. Results of a
-- former life may still wait for readers, so bodies of later lives have distinct names.
local EPOCHS = 1000000  -- per life

local function floor_of_life(purged)
  return EPOCHS * (tonumber(redis.call('GET', purged) or '') or 0)
end

-- Delete a key without DEL, which producers have no right to use.
local function forget(key) redis.call('EXPIRE', key, -1) end

-- Delete the remains of a trajectory that is about to begin; returns the floor of its epochs.
local function floor_of_leftover(key, floor)
  if redis.call('EXISTS', key) == 0 then return floor end
  local epoch = redis.pcall('HGET', key, 'epoch')
  epoch = type(epoch) == 'string' and tonumber(epoch)
  if epoch and epoch >= floor and epoch < EXACT then floor = EPOCHS * (math.floor(epoch / EPOCHS) + 1) end
  forget(key)
  return floor
end
