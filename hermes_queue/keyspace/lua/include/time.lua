-- Redis' own clock, in seconds, and the format of times in scores and hashes.
local function clock()
  local t = redis.call('TIME')
  return tonumber(t[1]) + tonumber(t[2]) / 1e6
end
local now = clock()

local function stamp(at) return string.format('%.6f', at) end
