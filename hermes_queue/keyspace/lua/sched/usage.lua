-- Slot-time used, which decays by half every `half` seconds. A usage u at the time `at` is kept as the point in
-- time at + half * log2(u). That point does not move while u decays: nothing has to be brought up to date, and
-- children of a node are in order at any time. `at` is a clock of our own, which never goes back.
local HALF_LIFE_S = 1800
local RUNNING_S = 60  -- a running job counts as so many seconds more than it has used

local function used_at(point, at, half)
  return point and 2 ^ math.min(50, (tonumber(point) - at) / half) or 0
end

local function later(point, seconds, at, half)
  return at + half * math.log(math.max(used_at(point, at, half) + seconds, 1e-6)) / math.log(2)
end

-- The clock, from its last value and what it is ahead of Redis' own: its time, and how much it is ahead now.
local function steady(last, ahead)
  last, ahead = tonumber(last or '') or 0, tonumber(ahead or '') or 0
  if now + ahead < last then ahead = last - now end
  return now + ahead, ahead
end
