-- The lives of a run: it begins anew when it is enqueued after a purge, with the same ids.
--
-- purged:{id} counts the purges of a run. The epochs of a later life are above those of all before
-- it, so that no claim, and no record that a worker still keeps, counts in a life that is not its
-- own. traj:{id} holds where its epochs begin as `floor`, when that is not 0. Results of a former life may still wait for their
-- readers: bodies of a later one have names of their own.
local EPOCHS = 1000000  -- of one life

local function floor_of_life(purged)
  return EPOCHS * (tonumber(redis.call('GET', purged) or '') or 0)
end

-- Delete a hash, by the rights of a producer, which may not delete keys.
local function forget_hash(key)
  local names = redis.call('HKEYS', key)
  if #names > 0 then redis.call('HDEL', key, unpack(names)) end
end

-- Delete what is left of a trajectory that is about to begin; returns where its epochs begin.
local function floor_of_leftover(key, floor)
  local epoch = tonumber(redis.call('HGET', key, 'epoch') or '')
  if epoch and epoch >= floor then floor = EPOCHS * (math.floor(epoch / EPOCHS) + 1) end
  forget_hash(key)
  return floor
end

-- What the body of a trajectory is stored under, after `body:`: its id and, from the second life on, ~ and the life.
local function body_name(key, id)
  local floor = tonumber(redis.call('HGET', key, 'floor') or '') or 0
  return floor > 0 and id .. '~' .. string.format('%.0f', floor / EPOCHS) or id
end
