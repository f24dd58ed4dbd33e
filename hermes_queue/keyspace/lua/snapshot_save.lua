-- Note which snapshot at a provider holds what, for the workers on other hosts.
--
-- KEYS[1] snapshot:{hash}   hash: place, name, id
-- ARGV[1] place, e.g. an app of the provider  ARGV[2] name  ARGV[3] id of the snapshot
-- ARGV[4] how long the provider keeps it, s
-- The last note stands. Returns 1.
redis.call('HSET', KEYS[1], 'place', ARGV[1], 'name', ARGV[2], 'id', ARGV[3])
redis.call('PEXPIRE', KEYS[1], math.max(1, math.ceil(1000 * tonumber(ARGV[4]))))
return 1
