CREATE SCHEMA shop;
CREATE TABLE shop.customers (id bigint PRIMARY KEY, name text);
CREATE TABLE shop.orders (id bigint PRIMARY KEY, customer_id bigint, status text, amount numeric(10, 2));
INSERT INTO shop.customers VALUES (1, 'Ada'), (2, 'Grace');
INSERT INTO shop.orders VALUES (1, 1, 'paid', 20.00), (2, 1, 'open', 5.00), (3, 2, 'paid', 7.50);
CREATE PUBLICATION nevermore FOR TABLE shop.customers, shop.orders WITH (publish_via_partition_root = true);
