-- Add to the fleet's counts of the current two minutes.
--
-- ARGV[1] prefix  ARGV[2] width of a bucket, s  ARGV[3] seconds that a bucket is kept
-- ARGV[4...] pairs of name, count
-- The bucket is the hash tally:{number}. Returns its number. Repeating a call counts twice.
local t = redis.call('TIME')
local bucket = math.floor(tonumber(t[1]) / tonumber(ARGV[2]))
local key = ARGV[1] .. 'tally:' .. string.format('%.0f', bucket)
for i = 4, #ARGV, 2 do redis.call('HINCRBY', key, ARGV[i], ARGV[i + 1]) end
redis.call('EXPIRE', key, ARGV[3])
return bucket
