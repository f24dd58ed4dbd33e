-- @include time, healing, bulk
-- Confirm that the messages of these jobs are in the broker: they need no mover any more.
--
-- @key delayed, waiting  jobs whose message is in the broker, by time
-- @arg prefix
-- @arg claim  score they were claimed under, or '' = any score
-- @arg ids[]
-- A job that was delayed again meanwhile (its message was answered `held`, or its first attempt has
-- failed) has another score and stays: removing it here would leave it without a message. A job that a
-- worker has begun meanwhile, or that was cancelled, is not delayed any more and no longer waits.
-- Returns how many of them were delayed.
local confirmed = {}
in_pieces(ids, function(some)
  for i, score in ipairs(healing('ZMSCORE', delayed, unpack(some))) do
    if score and (claim == '' or math.abs(tonumber(score) - tonumber(claim)) < 1e-5) then
      confirmed[#confirmed + 1] = some[i]
    end
  end
end)
in_pieces(confirmed, function(some) redis.call('ZREM', delayed, unpack(some)) end)
add_all(waiting, stamp(now), confirmed)
return #confirmed
